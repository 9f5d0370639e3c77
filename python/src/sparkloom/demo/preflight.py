"""What must be right before anything is made or started: key, port, memory, packages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from sparkloom.errors import Exit, SparkloomError

GIB = 1 << 30


def read_key(path: Path | None) -> str:
    """The API key: from the file, else from VLLM_API_KEY, else none.

    Errors: INPUT when the file cannot be read or holds no key.
    """
    if path is None:
        return os.environ.get("VLLM_API_KEY", "")
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise SparkloomError(
            f"the API key's file cannot be read: {reason}",
            file=path,
            field="--api-key-file",
            mend="give a file that holds the key and nothing else",
        ) from None
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SparkloomError(  # the value is not shown: it may be half of a key
            "the API key's file holds no usable key",
            file=path,
            field="--api-key-file",
            mend="write one line of printable ASCII characters without blanks into it",
        )
    return text


def check_packages() -> None:
    """Errors: RESOURCE when what the demo imports is not installed."""
    for name in ("vllm", "torch", "transformers", "gguf"):
        if importlib.util.find_spec(name) is None:
            raise SparkloomError(
                f"the Python package {name} is not installed in this environment",
                mend="run `make demo`, which makes the environment, or install python/requirements/cpu.txt",
                code=Exit.RESOURCE,
            )


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that new processes may use: the kernel's estimate, less if a control group allows less."""
    available = 0
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        here = next(line.partition("::")[2] for line in groups if line.startswith("0::"))
    except (OSError, StopIteration):
        return available
    folder = root / "sys/fs/cgroup" / here.lstrip("/")
    while True:
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            # Page cache counts as used and can be given back.
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used -= int(stat.get("inactive_file", 0))
            if limit != "max":
                available = min(available, max(0, int(limit) - used))
        except (OSError, ValueError):
            pass
        if folder == root / "sys/fs/cgroup" or root / "sys/fs/cgroup" not in folder.parents:
            return available
        folder = folder.parent


def check_memory(need: int, root: Path = Path("/")) -> None:
    """Errors: RESOURCE when both ranks together do not fit."""
    have = available_memory(root)
    if have < need:
        raise SparkloomError(
            f"too little memory: {have / GIB:.1f} GiB available, both ranks need {need / GIB:.1f} GiB",
            mend="end other programs, or give the container more memory",
            code=Exit.RESOURCE,
        )

"""What a rank's log says when something went wrong: the lines to show, and the mend for known causes."""

from __future__ import annotations

import re
from pathlib import Path

from sparkloom.errors import Exit

# Pattern in the log, what to do about it. The first match wins, so causes stand before their consequences.
KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"Address already in use|Errno 98",
        "another program listens on that port: stop it or choose another one",
    ),
    (r"No space left on device", "free some space on the disk or in /dev/shm"),
    (
        r"Cannot allocate memory|std::bad_alloc|MemoryError|out of memory",
        "free memory, or lower --max-model-len",
    ),
    (r"connectFullMesh failed", "VLLM_HOST_IP and GLOO_SOCKET_IFNAME must name the link between the nodes"),
    (
        r"Timed out after \d+ seconds waiting for clients",
        "the other rank did not join in time: look at its log",
    ),
    (
        r"quantization.*exl3|Unknown quantization",
        "vLLM does not see the plug-in: run `sparkloom plugin check`",
    ),
    (r"No module named|ImportError", "the environment is incomplete: run `make clean venv`"),
)
HARMLESS = re.compile(r"\b(DEBUG|INFO|WARNING)\b")  # vLLM warns of errors that it has got over


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a log, empty when there is none; reads at most 64 KiB of it."""
    try:
        with path.open("rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - 65536))
            text = f.read().decode(errors="replace")
    except OSError:
        return ""
    kept = [line[:300] for line in text.splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


def first_error(path: Path) -> str:
    """The first line that names an exception: what follows it in vLLM's log is mostly its consequence."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        if HARMLESS.search(line):
            continue
        found = re.search(r"((?:\w+\.)*\w*(?:Error|Exception)): (.+)", line)
        if found:
            return found[0][:300]
    return ""


def mend(path: Path, status: int | None) -> str:
    """What to do about a rank that ended with `status`."""
    text = "\n".join(line for line in tail(path, 400).splitlines() if not HARMLESS.search(line))
    for pattern, advice in KNOWN:
        if re.search(pattern, text):
            return advice
    if status == 137:
        return "something killed it with SIGKILL: if `dmesg` tells of the OOM killer, free memory"
    if status == Exit.INTERNAL:
        return "a fault of ours: please report the log"
    return f"read the whole log: {path}"

"""Stacks of a rank's processes, saved when a deadline passes: by py-spy where it is installed, else what the
kernel tells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

EACH_S = 4.0


def find() -> str | None:
    """The program py-spy: of this very environment, else on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


async def dump(
    pids: Sequence[int], why: str, out: Path, proc: Path = Path("/proc"), *, spy: str | None
) -> Path:
    """Write the stacks of `pids` to `out`; never raises, ends within a few seconds."""
    texts = await asyncio.gather(*(_one(pid, spy, proc) for pid in pids))
    head = f"why: {why}\n" + ("" if spy else "py-spy is not installed: kernel view only\n")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(head + "\n".join(texts))
    except OSError:
        return out
    return out


async def _one(pid: int, spy: str | None, proc: Path) -> str:
    folder = proc / str(pid)
    lines = [f"\n=== process {pid}: {_read(folder / 'cmdline')[:160]}"]
    if spy:
        # --nonblocking: the process may hang inside a driver and must not be stopped by us as well.
        lines.append(await _ask(spy, pid))
    for name in ("wchan", "stack", "status"):
        lines.append(f"{name}: {_read(folder / name)[:1500]}")
    for task in sorted(folder.glob("task/*"))[:64]:
        lines.append(f"thread {task.name} {_read(task / 'comm')}: {_read(task / 'wchan')}")
    return "\n".join(lines)


async def _ask(spy: str, pid: int) -> str:
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *(spy, "dump", "--nonblocking", "--pid", str(pid)), stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        return f"py-spy cannot be run: {error.strerror}"
    try:
        text, _ = await asyncio.wait_for(child.communicate(), EACH_S)
        return text.decode(errors="replace")
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        return "py-spy gave no answer"


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(cannot be read)"

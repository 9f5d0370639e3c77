"""Stacks of a rank's processes, saved when a deadline passes: by py-spy where it is installed, else what the
kernel tells."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

EACH_S = 4.0


async def dump(pids: Sequence[int], why: str, out: Path, proc: Path = Path("/proc")) -> Path:
    """Write the stacks of `pids` to `out`; never raises, ends within a few seconds."""
    spy = shutil.which("py-spy")
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
        child = await asyncio.create_subprocess_exec(
            spy,
            "dump",
            "--nonblocking",
            "--pid",
            str(pid),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            text, _ = await asyncio.wait_for(child.communicate(), EACH_S)
            lines.append(text.decode(errors="replace"))
        except TimeoutError:
            child.kill()
            lines.append("py-spy gave no answer")
    for name in ("wchan", "stack", "status"):
        lines.append(f"{name}: {_read(folder / name)[:1500]}")
    for task in sorted(folder.glob("task/*"))[:64]:
        lines.append(f"thread {task.name} {_read(task / 'comm')}: {_read(task / 'wchan')}")
    return "\n".join(lines)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(cannot be read)"

"""Processes as `/proc` shows them: who descends from whom, what they hold, and how to end them safely.

Every reader takes the folder where procfs is mounted, so that tests can give it a tree of files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHM = "/dev/shm/"


@dataclass(frozen=True)
class Proc:
    """One process; `(pid, start)` names it for good, a pid alone may be given again."""

    pid: int
    ppid: int
    sid: int
    start: int  # clock ticks since boot
    state: str  # R, S, D, Z, T ...


def read(pid: int, proc: Path = PROC) -> Proc | None:
    """The process `pid`, or None when there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, parentheses and blanks too.
    rest = text[text.rindex(")") + 2 :].split()
    return Proc(pid, int(rest[1]), int(rest[3]), int(rest[19]), rest[0])


def snapshot(proc: Path = PROC) -> dict[int, Proc]:
    """All processes, by pid."""
    found = (read(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return {p.pid: p for p in found if p is not None}


def descendants(root: int, table: dict[int, Proc]) -> list[Proc]:
    """Living processes below `root` (itself not included), parents before children."""
    children: dict[int, list[Proc]] = {}
    for p in table.values():
        children.setdefault(p.ppid, []).append(p)
    out: list[Proc] = []
    queue = [root]
    while queue:
        for p in children.get(queue.pop(0), ()):
            queue.append(p.pid)
            if p.state not in "ZX":
                out.append(p)
    return out


def same(p: Proc) -> bool:
    """Whether `p` still runs (a zombie does not)."""
    now = read(p.pid)
    return now is not None and now.start == p.start and now.state not in "ZX"


def send(p: Proc, sig: int) -> bool:
    """Signal `p`, never another process that got its pid meanwhile; whether it was there."""
    try:
        fd = os.pidfd_open(p.pid)
    except OSError:
        return False
    try:
        now = read(p.pid)
        if now is None or now.start != p.start:
            return False
        signal.pidfd_send_signal(fd, sig)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)


def kill_all(find: Callable[[], Iterable[Proc]], seconds: float = 10.0) -> list[Proc]:
    """SIGKILL whatever `find` returns until it returns nothing; give back what outlived `seconds`.

    Asking again and again closes the race with a process that forks while it is being killed.
    """
    end = time.monotonic() + seconds
    while True:
        left = list(find())
        if not left:
            return []
        for p in left:
            send(p, signal.SIGKILL)
        if time.monotonic() > end:
            return left
        time.sleep(0.02)


def network_of(pid: int | str, proc: Path = PROC) -> str:
    """The identity of a process's network namespace (`net:[4026531840]`), empty when unreadable."""
    try:
        return os.readlink(proc / str(pid) / "ns" / "net")
    except OSError:
        return ""


def has_mark(pid: int, mark: str, proc: Path = PROC) -> bool:
    """Whether `mark` (`NAME=value`) stands in the environment that the process was started with."""
    try:
        return mark.encode() in (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def pss(pid: int, proc: Path = PROC) -> int:
    """Proportional set size in bytes: shared pages are divided among those who share them."""
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def shared_memory(pid: int, proc: Path = PROC) -> set[str]:
    """Files under /dev/shm that the process has open or mapped and that still have a name."""
    found: set[str] = set()
    folder = proc / str(pid)
    with contextlib.suppress(OSError):
        for line in (folder / "maps").read_text(errors="replace").splitlines():
            at = line.find(SHM)
            if at > 0:
                found.add(line[at:])
    with contextlib.suppress(OSError):
        for fd in os.listdir(folder / "fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(folder / "fd" / fd)
                if target.startswith(SHM):
                    found.add(target)
    return {name for name in found if not name.endswith(" (deleted)")}

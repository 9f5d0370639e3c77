"""Find the processes of this node's rank again, also after its agent and its keeper were killed.

Two ways, because each alone has a hole: the mark stands in the environment of everything that the rank
starts, but a process may clear or overwrite that; the session of the keeper is written down, but a process
may leave it. Where a control group was delegated, it is the third and has none (`cgroup.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from sparkloom import fsio
from sparkloom.ranks import procs

FILE = "rank-session.json"


def record(folder: Path, keeper: procs.Proc, boot_id: str) -> None:
    """Write down the rank's session, named by its leader, the keeper. Raises OSError."""
    fsio.write_json(folder / FILE, {"pid": keeper.pid, "start": keeper.start, "boot_id": boot_id})


def forget(folder: Path) -> None:
    """No process of the rank is left."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)


def find(folder: Path, mark: str, boot_id: str) -> list[procs.Proc]:
    """Every living process of the rank that is on record, or that carries the mark."""
    table = procs.snapshot()
    session = _session(folder, boot_id, table)
    return [
        p
        for p in table.values()
        if p.pid != os.getpid()
        and p.state not in "ZX"
        and ((session is not None and p.sid == session) or procs.has_mark(p.pid, mark))
    ]


def _session(folder: Path, boot_id: str, table: dict[int, procs.Proc]) -> int | None:
    """The recorded session, if it can still be that one.

    No process gets the leader's number while its session lives; another process with that number means that
    the session is gone.
    """
    try:
        said = json.loads((folder / FILE).read_text())
        pid, start = int(said["pid"]), int(said["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if said.get("boot_id") != boot_id or (pid in table and table[pid].start != start):
        return None
    return pid

"""The record of a run: who owns it, what it made, and how to clear away what a dead owner left.

Every run has a folder with a lock file. The kernel drops the lock when the owner dies, however it dies, so
a lock that can be taken marks a dead run: its processes are ended, its namespaces and its folder removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks import procs
from sparkloom.ranks.nodes import NETNS, remove_namespaces

MARK = "SPARKLOOM_RUN"
PREFIX = "spl"


def base_folder() -> Path:
    """Where this user's runs are recorded: $XDG_RUNTIME_DIR/sparkloom, else a private folder in /tmp.

    Errors: RESOURCE when the folder exists and belongs to somebody else.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        base = Path(runtime) / "sparkloom"
    else:
        base = Path(tempfile.gettempdir()) / f"sparkloom-{os.getuid()}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = base.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise SparkloomError(
            "the folder for running pairs belongs to somebody else",
            file=base,
            mend="set XDG_RUNTIME_DIR to a folder of your own",
            code=Exit.RESOURCE,
        )
    return base


class Run:
    """An owned run; `close` gives its folder and its lock back."""

    def __init__(self, base: Path | None = None) -> None:
        self.base = base or base_folder()
        self.id = secrets.token_hex(3)
        self.folder = self.base / self.id
        self.folder.mkdir(mode=0o700)
        self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.keepers: list[procs.Proc] = []
        self.save()

    @property
    def prefix(self) -> str:
        """Start of the names of this run's namespaces and interfaces."""
        return PREFIX + self.id

    @property
    def mark(self) -> str:
        """`NAME=value` in the environment of every process of this run."""
        return f"{MARK}={self.id}"

    def save(self) -> None:
        """Write down what would have to be cleared away."""
        owner = procs.read(os.getpid())
        fsio.write_json(
            self.folder / "run.json",
            {
                "owner": [os.getpid(), owner.start if owner else 0],
                "namespaces": [self.prefix + "a", self.prefix + "b"],
                "keepers": [[p.pid, p.start] for p in self.keepers],
            },
            mode=0o600,
        )

    def add_keeper(self, p: procs.Proc) -> None:
        """Record a keeper at once after its start."""
        self.keepers.append(p)
        self.save()

    def sweep(self) -> list[procs.Proc]:
        """End every process of this run that is still there; give back what could not be ended."""
        return procs.kill_all(lambda: processes_of(self.folder, self.id, self.keepers))

    def close(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def processes_of(folder: Path, run_id: str, keepers: Iterable[procs.Proc]) -> list[procs.Proc]:
    """Living processes of a run: by network namespace, by session, by descent and by environment.

    Four ways, because each alone has a hole: a process may leave its session, be adopted by init, or
    overwrite its environment (setproctitle does), and loopback runs have no namespace of their own.
    """
    table = procs.snapshot()
    known = {p.pid: p.start for p in keepers}
    # A session id is the pid of its leader; no new process gets that number while the session lives. A keeper
    # whose number another process now has is gone together with its session.
    sessions = {pid for pid, start in known.items() if pid not in table or table[pid].start == start}
    below = {p.pid for pid in sessions if pid in table for p in [table[pid], *procs.descendants(pid, table)]}
    networks = {network_id(PREFIX + run_id + end) for end in "ab"} - {""}
    mark = f"{MARK}={run_id}"
    return [
        p
        for p in table.values()
        if p.pid != os.getpid()
        and p.state not in "ZX"
        and (
            p.sid in sessions
            or p.pid in below
            or (networks and procs.network_of(p.pid) in networks)
            or procs.has_mark(p.pid, mark)
        )
    ]


def network_id(namespace: str) -> str:
    """`net:[INODE]` of a named namespace, empty when it does not exist."""
    try:
        return f"net:[{(NETNS / namespace).stat().st_ino}]"
    except OSError:
        return ""


def clear_stale(base: Path | None = None) -> list[str]:
    """Clear away the runs whose owner is dead; what was done, one line each."""
    done: list[str] = []
    for folder in sorted((base or base_folder()).iterdir()):
        if not folder.is_dir():
            continue
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # its owner died between making the folder and the lock, or is closing it
            if not any(folder.iterdir()):
                folder.rmdir()
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            done.append(_clear(folder))
        finally:
            os.close(lock)
    return done


def _clear(folder: Path) -> str:
    record: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / "run.json").read_text())
    keepers = [procs.Proc(pid, 0, pid, start, "?") for pid, start in record.get("keepers", [])]
    found = processes_of(folder, folder.name, keepers)
    procs.kill_all(lambda: processes_of(folder, folder.name, keepers))
    remove_namespaces([PREFIX + folder.name + end for end in "ab"])
    shutil.rmtree(folder, ignore_errors=True)
    return f"cleared an earlier run {folder.name} ({len(found)} processes left over)"

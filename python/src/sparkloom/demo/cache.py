"""The demo's files in the user's cache: whole, hashed, made once.

A `Store` is a folder with a ledger. A file counts only when the ledger has its hash, and it enters the ledger
after it is complete on disk; an interrupted preparation goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError

LEDGER = "ledger.json"
CHUNK = 1 << 20


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/sparkloom, or ~/.cache/sparkloom."""
    set_ = os.environ.get("XDG_CACHE_HOME")
    return (Path(set_) if set_ else Path.home() / ".cache") / "sparkloom"


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone.

    Errors: RESOURCE when another process prepares there, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SparkloomError(
            f"the cache folder cannot be written: {error.strerror}",
            file=folder,
            mend="set XDG_CACHE_HOME to a folder that you may write",
            code=Exit.RESOURCE,
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SparkloomError(
                "another process is preparing this model",
                file=folder,
                mend="wait until it is done, then run this again",
                code=Exit.RESOURCE,
            ) from None
        yield
    finally:
        os.close(lock)


class Store:
    """Files of one folder with their keys and hashes.

    A file's key names everything that it was made from; a file with another key is made again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self.entries = dict(json.loads((folder / LEDGER).read_text())["files"])

    def path(self, name: str) -> Path:
        """Where the file stands, whether it exists or not."""
        return self.folder / name

    def has(self, name: str, key: str) -> bool:
        """Whether the file is there, made from `key`, with the size and hash of the ledger."""
        entry = self.entries.get(name)
        if not isinstance(entry, dict) or entry.get("key") != key:
            return False
        path = self.path(name)
        try:
            return bool(path.stat().st_size == entry["bytes"] and sha256(path) == entry["sha256"])
        except (OSError, KeyError):
            return False

    def add(self, name: str, key: str) -> None:
        """Enter a complete file into the ledger."""
        path = self.path(name)
        self.entries[name] = {"key": key, "bytes": path.stat().st_size, "sha256": sha256(path)}
        fsio.write_json(self.folder / LEDGER, {"version": 1, "files": self.entries})

    def remove_partial(self) -> None:
        """Delete what an interrupted write left behind."""
        for part in self.folder.glob(".*.part"):
            part.unlink(missing_ok=True)

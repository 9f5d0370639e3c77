"""A shard that is written over hours and survives being stopped at any moment.

The file grows under a hidden name beside a journal: one line per finished unit with its length and SHA-256.
A later run checks what the journal vouches for, cuts off the rest and goes on. The finished file is
flushed to disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from sparkloom import fsio


class ShardFile:
    """A file under construction.

    Args:
        final: where the finished file goes.
        work: folder for the journal and the part.
        head: the file's first bytes; another head means other work, so what is there is thrown away.

    Attributes:
        done: what each finished unit noted, in order.
    """

    def __init__(self, final: Path, work: Path, head: bytes) -> None:
        self.final = final
        self.part = work / f"{final.name}.part"
        self.journal = work / f"{final.name}.journal"
        self.done: list[dict[str, Any]] = []
        self._hash = hashlib.sha256(head)
        self._file = self._resume(head)
        self._notes = self.journal.open("a", encoding="utf-8")

    def _resume(self, head: bytes) -> IO[bytes]:
        """Open the part behind the last unit that is proven whole."""
        try:
            file = self.part.open("r+b")
        except FileNotFoundError:
            return self._fresh(head)
        if file.read(len(head)) != head or not self.journal.is_file():
            file.close()
            return self._fresh(head)
        whole = self._hash.copy()
        end = len(head)
        kept: list[str] = []
        for line in self.journal.read_text(encoding="utf-8").splitlines():
            try:
                note = json.loads(line)
                length, digest = note["length"], note["sha256"]
            except (ValueError, KeyError, TypeError):
                break  # the line that was being written
            found = hashlib.sha256()
            left = length
            while left and (chunk := file.read(min(left, 1 << 24))):
                found.update(chunk)
                whole.update(chunk)
                left -= len(chunk)
            if left or found.hexdigest() != digest:
                break
            self._hash = whole.copy()
            end += length
            self.done.append(note["note"])
            kept.append(line + "\n")
        fsio.write_text(self.journal, "".join(kept))
        file.truncate(end)
        file.seek(end)
        return file

    def _fresh(self, head: bytes) -> IO[bytes]:
        self.journal.unlink(missing_ok=True)
        file = self.part.open("w+b")
        file.write(head)
        return file

    def add(self, pieces: Iterable[bytes | memoryview], note: dict[str, Any]) -> None:
        """Append one unit; when this returns a later run will find it."""
        digest, length = hashlib.sha256(), 0
        for piece in pieces:
            digest.update(piece)
            self._hash.update(piece)
            self._file.write(piece)
            length += len(piece)
        self._file.flush()
        line = {"length": length, "sha256": digest.hexdigest(), "note": note}
        self._notes.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._notes.flush()
        self.done.append(note)

    def flush(self) -> str:
        """Bring everything to disk; return the whole file's SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def finish(self) -> None:
        """Put the file in its place and drop the journal."""
        self.close()
        os.replace(self.part, self.final)
        fsio.fsync(self.final.parent)
        self.journal.unlink()

    def close(self) -> None:
        """Leave the part for a later run."""
        self._file.close()
        self._notes.close()

"""Follow a log that somebody else writes: new lines, lines without an end, a size limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST = 4000  # characters of a line that are looked at
CHUNK = 1 << 20


@dataclass
class Tail:
    """Reads what was added to `path` since the last look.

    Attributes:
        at: bytes read so far.
        limit: bytes that the file may have. The writer must append (O_APPEND): see `trim`.
        keep: bytes of the newest text that `trim` saves beside it.
    """

    path: Path
    at: int = 0
    limit: int = 256 << 20
    keep: int = 16 << 20

    def lines(self, *, final: bool = False) -> Iterator[str]:
        """The lines of the next chunk (1 MiB); `final`: all that is left, also a last one without an end."""
        while True:
            try:
                with self.path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size < self.at:
                        self.at = 0  # truncated meanwhile
                    file.seek(self.at)
                    data = file.read(CHUNK)
            except OSError:
                return
            whole, newline, rest = data.rpartition(b"\n")
            if not newline and (final or len(data) == CHUNK):  # a line longer than a chunk goes in pieces
                whole, rest = rest, b""
            self.at += len(data) - len(rest)
            for line in whole.decode(errors="replace").splitlines():
                yield line[:LONGEST]
            if not final or not data:
                return

    def trim(self) -> bool:
        """Cut a file that outgrew its limit; its newest text is kept as `NAME.1`. Whether it was cut."""
        try:
            if self.path.stat().st_size <= self.limit:
                return False
            self.path.with_name(self.path.name + ".1").write_bytes(last_bytes(self.path, self.keep))
            os.truncate(self.path, 0)
        except OSError:
            return False
        self.at = 0
        return True


def last_bytes(path: Path, count: int) -> bytes:
    """The end of a file. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - count))
        return file.read(count)


def last_lines(path: Path, count: int, window: int = 4 << 20) -> list[str]:
    """The last lines of a file, reading no more than `window` bytes of it. Raises OSError."""
    text = last_bytes(path, window).decode(errors="replace")
    return [line[:LONGEST] for line in text.splitlines()[-count:]]

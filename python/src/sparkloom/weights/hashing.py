"""Hash large files without hurting the machine: a rate limit, and pages handed back as they are read.

Hashing 164 GiB at full speed floods the page cache, which on this machine is GPU memory; two power-offs were
reported while doing so.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from sparkloom.weights.manifest import FileEntry

CHUNK = 4 << 20
DROP_EVERY = 64 << 20


class RateLimit:
    """At most so many bytes per second on average; `None` for no limit. May be shared by threads.

    Args:
        bytes_per_second: the limit.
        clock, sleep: replaced in tests.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def spend(self, count: int) -> None:
        """Wait until `count` more bytes are allowed."""
        if not self._rate:
            return
        now = self._clock()
        # Unused time is not saved up beyond a quarter of a second: no burst after a pause.
        self._due = max(self._due, now - 0.25) + count / self._rate
        if self._due > now:
            self._sleep(self._due - now)


class Digest(Protocol):
    """What `hashlib` gives."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def digest_for(entry: FileEntry) -> Digest:
    """The hash that the entry is published with: sha256, or git's blob hash."""
    if entry.sha256 is None and entry.git_sha1 is not None:
        return hashlib.sha1(f"blob {entry.size}\0".encode(), usedforsecurity=False)
    return hashlib.sha256()


def expected(entry: FileEntry) -> str | None:
    """The published hash."""
    return entry.sha256 or entry.git_sha1


def drop_pages(fd: int, offset: int = 0, length: int = 0) -> None:
    """Tell the kernel that these pages are not needed again (nothing happens where it cannot)."""
    try:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    except (OSError, AttributeError):
        return


Opener = Callable[[Path], IO[bytes]]


def open_unbuffered(path: Path) -> IO[bytes]:
    """Open for reading without Python's own buffer."""
    return open(path, "rb", buffering=0)


def feed(
    path: Path,
    digest: Digest,
    *,
    limit: RateLimit | None = None,
    progress: Callable[[int], None] | None = None,
    opener: Opener = open_unbuffered,
) -> int:
    """Read a file into a hash; returns the bytes read. Pages are advised away while reading.

    Raises:
        OSError: the file cannot be read.
    """
    buffer = memoryview(bytearray(CHUNK))
    total = dropped = 0
    with opener(path) as file:
        source: Any = file
        while count := source.readinto(buffer):
            if limit:
                limit.spend(count)
            digest.update(buffer[:count])
            total += count
            if progress:
                progress(count)
            if total - dropped >= DROP_EVERY:
                drop_pages(file.fileno(), dropped, total - dropped)
                dropped = total
        drop_pages(file.fileno())
    return total

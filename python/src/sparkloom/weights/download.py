"""Download one file so that nothing is fetched twice: ranged resume, stall time-out, hash at the end."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.hashing import DROP_EVERY, RateLimit, digest_for, drop_pages, expected, feed
from sparkloom.weights.hub import Source
from sparkloom.weights.manifest import STATE_FOLDER, FileEntry

RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Options:
    """How to download.

    Args:
        stall_s: seconds without a byte after which a connection is given up.
        attempts: attempts per source without any new byte before the next source is tried.
        backoff_s: first wait between attempts; doubled each time, at most 30 s.
        token: sent to the hub itself, not to the storage that it redirects to.
        limit: rate limit shared by all files.
        stop: set to end all downloads between two chunks.
    """

    stall_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 1.0
    token: str | None = field(default=None, repr=False)
    limit: RateLimit | None = None
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a larger remote file that make a local one: as many from `start` as the entry's size."""

    path: str
    start: int


class Broken(Exception):
    """An attempt that ended early; `final` says that this source can not help."""

    def __init__(self, reason: str, *, final: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.wait_s = wait_s


def new_client(options: Options, sources: Sequence[Source] = ()) -> httpx.Client:
    """A client that gives up a silent connection and drops the token on a redirect to another host.

    Another node is reached over the fabric, never through a proxy that the environment names.
    """
    proxies = not any(source.peer for source in sources)
    headers = {"Accept-Encoding": "identity"}
    timeout = httpx.Timeout(options.stall_s, connect=min(options.stall_s, 15.0))
    return httpx.Client(timeout=timeout, follow_redirects=True, headers=headers, trust_env=proxies)


def part_path(folder: Path, entry: FileEntry) -> Path:
    """Where an unfinished file's bytes are kept: named by its hash, so revisions never mix."""
    name = expected(entry) or f"{entry.path.replace('/', '--')}.{entry.size}"
    return folder / STATE_FOLDER / "parts" / name


def download(
    client: httpx.Client,
    sources: Sequence[Source],
    entry: FileEntry,
    folder: Path,
    options: Options,
    progress: Callable[[int], None] = lambda count: None,
    note: Callable[[str], None] = lambda text: None,
    span: Span | None = None,
) -> str | None:
    """Fetch one file to `folder`; returns its hash, or `None` when none is published.

    Bytes of an earlier run are kept and asked for by range. The file appears under its name only when size
    and hash are right. With a `span` only these bytes of the remote file are asked for.

    Raises:
        SparkloomError: every source failed (6), or all sources have other bytes than published (3).
    """
    path = part_path(folder, entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    corrupt = False
    for source in sources:
        # An earlier run may have left wrong bytes: after a wrong hash the whole file is fetched once more.
        for _ in range(2):
            with _Part(path, entry, progress) as part:
                resumed = part.done > 0
                try:
                    _fill(client, source, part, options, note, span)
                except Broken as broken:
                    failures.append(f"{source.label}: {broken}")
                    break
                found = part.digest.hexdigest() if expected(entry) else None
                if found == expected(entry):
                    part.finish(folder / entry.path)
                    return found
                corrupt = True
                failures.append(f"{source.label}: hash {found}, {expected(entry)} is published")
                part.reset()
            if not resumed:
                break
    raise SparkloomError(
        f"could not fetch {entry.path}",
        detail="\n".join(dict.fromkeys(failures)),
        mend="the sources have other bytes than published: use another endpoint, and do not load this file"
        if corrupt
        else "run it again: what is there is kept. Or give --endpoint MIRROR",
        code=Exit.CHECK if corrupt else Exit.NETWORK,
    )


class _Part:
    """The unfinished file: its bytes, their count and their hash."""

    def __init__(self, path: Path, entry: FileEntry, progress: Callable[[int], None]) -> None:
        self.path, self.entry, self._progress = path, entry, progress
        self.digest = digest_for(entry)
        self.done = self._dropped = 0

    def __enter__(self) -> _Part:
        """Open it and hash what an earlier run left; a part that is too long is thrown away."""
        self._file = self.path.open("ab", buffering=0)
        size = os.fstat(self._file.fileno()).st_size
        if size > self.entry.size:
            self._file.truncate(0)
        elif size:
            self.done = self._dropped = feed(self.path, self.digest)
            self._progress(self.done)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def reset(self) -> None:
        """Throw everything away."""
        self._file.truncate(0)
        self._progress(-self.done)
        self.done = self._dropped = 0
        self.digest = digest_for(self.entry)

    def write(self, chunk: bytes) -> None:
        """Append bytes; pages of what is on the disk are handed back now and then."""
        if self.done + len(chunk) > self.entry.size:
            raise Broken(f"more than the published {self.entry.size} bytes", final=True)
        view = memoryview(chunk)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise SparkloomError(
                f"cannot write {self.entry.path}: {error.strerror}", file=self.path,
                mend="make room on the disk and run it again: what is there is kept", code=Exit.RESOURCE,
            ) from error  # fmt: skip
        self.digest.update(chunk)
        self.done += len(chunk)
        self._progress(len(chunk))
        if self.done - self._dropped >= DROP_EVERY:
            os.fdatasync(self._file.fileno())  # only clean pages can be handed back
            drop_pages(self._file.fileno(), self._dropped, self.done - self._dropped)
            self._dropped = self.done

    def finish(self, target: Path) -> None:
        """Put the whole file in its place."""
        os.fsync(self._file.fileno())
        drop_pages(self._file.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path, target)
        fsio.fsync(target.parent)


def _fill(
    client: httpx.Client,
    source: Source,
    part: _Part,
    options: Options,
    note: Callable[[str], None],
    span: Span | None = None,
) -> None:
    """Ask again and again until the part has all bytes, or an attempt brought none too often."""
    best, idle, size = part.done, 0, part.entry.size
    while part.done < size:
        wait_s = 0.0
        try:
            _attempt(client, source, part, options, span)
            reason = f"ended after {part.done} of {size} bytes"
        except Broken as broken:
            if broken.final:
                raise
            reason, wait_s = str(broken), broken.wait_s
        if part.done >= size:
            return
        idle = 0 if part.done > best else idle + 1
        best = max(best, part.done)
        if idle >= options.attempts:
            raise Broken(f"{reason} ({idle} attempts without a new byte)")
        note(f"{part.entry.path}: {reason}; resuming at byte {part.done}")
        pause = min(options.backoff_s * 2**idle, 30.0) * random.uniform(0.7, 1.0)
        if options.stop.wait(max(pause, wait_s)):
            raise Broken("stopped", final=True)


def _attempt(
    client: httpx.Client, source: Source, part: _Part, options: Options, span: Span | None = None
) -> None:
    """One request for the bytes that are missing."""
    first = part.done + (span.start if span else 0)
    headers = {"Range": f"bytes={first}-"} if first else {}
    if span:
        headers["Range"] = f"bytes={first}-{span.start + part.entry.size - 1}"
    if options.token and not source.peer:
        headers["Authorization"] = f"Bearer {options.token}"
    try:
        url = source.url(span.path if span else part.entry.path)
        with client.stream("GET", url, headers=headers) as response:
            _judge_status(response, first)
            if span and response.status_code == 200:
                raise Broken("the server gives no byte ranges, only whole files", final=True)
            if part.done and response.status_code == 200:  # the server gives no ranges
                part.reset()
            for chunk in response.iter_raw():  # no chunk size: a cut would lose what is not yet a chunk
                if options.stop.is_set():
                    raise Broken("stopped", final=True)
                part.write(chunk)
                if options.limit:
                    options.limit.spend(len(chunk))
    except httpx.TimeoutException:
        raise Broken(f"no byte for {options.stall_s:g} s") from None
    except httpx.HTTPError as error:
        raise Broken(f"{type(error).__name__}: {_plain(error, options)}") from None
    except httpx.InvalidURL:
        raise Broken("not a usable address", final=True) from None


def _judge_status(response: httpx.Response, done: int) -> None:
    status = response.status_code
    if status == 206:
        start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if start is None or int(start[1]) != done:
            raise Broken(f"asked for byte {done}, got {response.headers.get('Content-Range')}", final=True)
        return
    if status == 200:
        return
    if status in (401, 403):
        raise Broken(f"HTTP {status}: the hub wants a login with access to it", final=True)
    if status in RETRY_STATUS:
        raise Broken(f"HTTP {status}", wait_s=_retry_after(response))
    raise Broken(f"HTTP {status}", final=True)


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(float(response.headers.get("Retry-After", "0")), 60.0)
    except ValueError:
        return 0.0


def _plain(error: Exception, options: Options) -> str:
    text = str(error) or "connection lost"
    return text.replace(options.token, "TOKEN") if options.token else text

"""Progress of a fetch for people: a bar per shard and one for all."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sparkloom.weights.manifest import FileEntry


class Total:
    """One bar for a hashing, packing or unpacking; silent where standard error is no terminal."""

    def __init__(self, title: str, total: int) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._title = title
        self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Total:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, path: str, count: int) -> None:
        """`count` more bytes of `path`."""
        self._progress.update(self._task, advance=count, description=f"{self._title} {path}")


class Bars:
    """A reporter that draws on standard error; plain lines when that is no terminal."""

    def __init__(self, title: str) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._title = title
        self._all: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self._left = 0

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, total: int, files: int) -> None:
        """Called once with the bytes and files that are missing."""
        self._left = files
        self._all = self._progress.add_task(self._title, total=total)
        if not self._console.is_terminal:
            self._console.print(f"{self._title}: {files} files, {total / 1e9:.2f} GB to fetch")

    def start(self, entry: FileEntry) -> None:
        """A file begins."""
        with self._lock:
            self._tasks[entry.path] = self._progress.add_task(entry.path, total=entry.size)

    def advance(self, entry: FileEntry, count: int) -> None:
        """Bytes arrived (negative: they were thrown away)."""
        self._progress.advance(self._tasks[entry.path], count)
        if self._all is not None:
            self._progress.advance(self._all, count)

    def done(self, entry: FileEntry) -> None:
        """A file is whole and verified."""
        with self._lock:
            self._progress.remove_task(self._tasks.pop(entry.path))
            self._left -= 1
        if not self._console.is_terminal:
            self._console.print(f"{entry.path}: verified, {self._left} left")

    def note(self, text: str) -> None:
        """A line between the bars."""
        self._console.print(text, markup=False)

"""Bring a folder to exactly the pinned snapshot: what is right stays, what is missing is fetched."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.download import Options, download, new_client, part_path
from sparkloom.weights.hashing import digest_for, expected, feed
from sparkloom.weights.hub import Source
from sparkloom.weights.manifest import MANIFEST_NAME, STATE_FOLDER, FileEntry, Manifest, save_manifest
from sparkloom.weights.places import list_files
from sparkloom.weights.receipt import Receipt, load_receipt, save_receipt, verified

SPARE = 1 << 30
"""Bytes that stay free on the disk."""


class Reporter(Protocol):
    """Where progress goes; one object per fetch, called from several threads."""

    def begin(self, total: int, files: int) -> None: ...
    def start(self, entry: FileEntry) -> None: ...
    def advance(self, entry: FileEntry, count: int) -> None: ...
    def done(self, entry: FileEntry) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """A reporter that says nothing."""

    def begin(self, total: int, files: int) -> None: ...
    def start(self, entry: FileEntry) -> None: ...
    def advance(self, entry: FileEntry, count: int) -> None: ...
    def done(self, entry: FileEntry) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did."""

    fetched: tuple[str, ...]
    kept: tuple[str, ...]
    bytes: int
    pruned: tuple[str, ...]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against another fetch.

    Raises:
        SparkloomError: somebody else holds it, or it cannot be written.
    """
    try:
        (folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
        file = (folder / STATE_FOLDER / "lock").open("a")
    except OSError as error:
        raise SparkloomError(
            f"cannot write the folder of the weights: {error.strerror}", file=folder,
            mend="run as a user that may write there, or change model.path", code=Exit.RESOURCE,
        ) from None  # fmt: skip
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SparkloomError(
                "another process is fetching into this folder", file=folder,
                mend="wait for it, or stop it", code=Exit.RESOURCE,
            ) from None  # fmt: skip
        yield


def fetch(
    manifest: Manifest,
    folder: Path,
    sources: Sequence[Source],
    options: Options,
    *,
    jobs: int = 4,
    prune: bool = False,
    reporter: Reporter | None = None,
) -> Fetched:
    """Make `folder` the snapshot that `manifest` describes.

    A file that is there with the right size is hashed once and kept when it is right. Everything fetched is
    hashed on the way, so no second reading follows. Receipt and manifest are written beside the files.

    Raises:
        SparkloomError: no room (5), network (6), or a source has wrong bytes (3).
    """
    report = reporter or Silent()
    with locked(folder):
        receipt = load_receipt(folder)
        lock = threading.Lock()
        missing, kept = _sort_out(manifest, folder, options, receipt, report.note)
        for entry, found in kept:
            if found is not None:
                receipt.add(entry.path, (folder / entry.path).stat(), found)
        _check_room(folder, missing)
        report.begin(sum(entry.size for entry in missing), len(missing))

        client = new_client(options, sources)

        def one(entry: FileEntry) -> None:
            report.start(entry)
            found = download(
                client, sources, entry, folder, options,
                progress=lambda count: report.advance(entry, count), note=report.note,
            )  # fmt: skip
            with lock:
                if found is not None:
                    receipt.add(entry.path, (folder / entry.path).stat(), found)
                    save_receipt(folder, receipt)
            report.done(entry)

        with client:
            _in_threads(one, missing, jobs, options)
        save_receipt(folder, receipt)
        save_manifest(folder / MANIFEST_NAME, manifest)
        pruned = _prune(manifest, folder) if prune else ()
        _clean_parts(folder)
    return Fetched(
        fetched=tuple(entry.path for entry in missing),
        kept=tuple(entry.path for entry, _ in kept),
        bytes=sum(entry.size for entry in missing),
        pruned=pruned,
    )


def _sort_out(
    manifest: Manifest,
    folder: Path,
    options: Options,
    receipt: Receipt,
    note: Callable[[str], None],
) -> tuple[list[FileEntry], list[tuple[FileEntry, str | None]]]:
    """Split the files into missing ones and kept ones (with a new hash, where one was made)."""
    missing: list[FileEntry] = []
    kept: list[tuple[FileEntry, str | None]] = []
    for entry in manifest.files:
        path = folder / entry.path
        if verified(receipt, folder, entry):
            kept.append((entry, None))
        elif path.is_file() and path.stat().st_size == entry.size and entry.hashed:
            note(f"{entry.path}: here already, hashing it")
            digest = digest_for(entry)
            feed(path, digest, limit=options.limit)
            found = digest.hexdigest()
            if found == expected(entry):
                kept.append((entry, found))
            else:
                note(f"{entry.path}: its bytes are not the pinned ones, fetching it again")
                missing.append(entry)
        else:
            missing.append(entry)
    return missing, kept


def _in_threads(
    work: Callable[[FileEntry], None], entries: Sequence[FileEntry], jobs: int, options: Options
) -> None:
    """Run `work` for each entry; the first error stops the others and is raised.

    The threads are daemons: an interrupt must not wait for a silent server. What they wrote is kept.
    """
    waiting: queue.SimpleQueue[FileEntry | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def worker() -> None:
        while (entry := waiting.get()) is not None:
            try:
                if not options.stop.is_set():
                    work(entry)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(min(max(1, jobs), len(entries)))]
    for entry in entries:
        waiting.put(entry)
    for thread in threads:
        waiting.put(None)
        thread.start()
    try:
        for _ in entries:
            error = ended.get()
            if error is not None:
                raise error
    except BaseException:
        options.stop.set()
        for thread in threads:
            thread.join(0.5)
        raise


def _check_room(folder: Path, missing: Sequence[FileEntry]) -> None:
    have = 0
    for entry in missing:
        part = part_path(folder, entry)
        if part.exists():
            have += part.stat().st_size
    need = sum(entry.size for entry in missing) - have
    free = shutil.disk_usage(folder).free
    if need > 0 and need + SPARE > free:
        raise SparkloomError(
            f"the disk has {free / 1e9:.1f} GB free, {(need + SPARE) / 1e9:.1f} GB are needed", file=folder,
            mend="free the disk, or set model.path to a larger one", code=Exit.RESOURCE,
        )  # fmt: skip


def _prune(manifest: Manifest, folder: Path) -> tuple[str, ...]:
    """Remove shards that are not part of the snapshot; other files are left alone."""
    known = {entry.path for entry in manifest.files}
    gone = [name for name in list_files(folder) if name.endswith(".safetensors") and name not in known]
    for name in gone:
        (folder / name).unlink()
    return tuple(gone)


def _clean_parts(folder: Path) -> None:
    """Nothing is unfinished any more: remove parts of other revisions."""
    parts = folder / STATE_FOLDER / "parts"
    if parts.is_dir():
        for name in os.listdir(parts):
            (parts / name).unlink(missing_ok=True)
        parts.rmdir()

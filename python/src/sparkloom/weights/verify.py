"""Compare a folder with the pinned snapshot, file by file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparkloom.errors import SparkloomError
from sparkloom.exl3.checkpoint import INDEX, read_index
from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.weights.checkpoint import shard_problem
from sparkloom.weights.hashing import Opener, RateLimit, digest_for, expected, feed, open_unbuffered
from sparkloom.weights.manifest import FileEntry, Manifest
from sparkloom.weights.places import Place, blob_hash, list_files
from sparkloom.weights.receipt import Receipt, load_receipt, save_receipt

GOOD = ("ok", "receipt")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said about one file.

    `status`: `ok` (hashed now), `receipt` (unchanged since it was hashed), `unhashed` (size is right, nobody
    published a hash), `missing`, `dangling`, `short`, `long`, `corrupt`, `unreadable`, `extra`, `stale`.
    """

    path: str
    status: str
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether the file is what was pinned."""
        return self.status in GOOD


def verify(
    place: Place,
    manifest: Manifest,
    *,
    receipts: Path | None = None,
    hash_files: bool = True,
    limit: RateLimit | None = None,
    jobs: int = 1,
    progress: Callable[[str, int], None] | None = None,
    opener: Opener = open_unbuffered,
    note: Callable[[str], None] = lambda text: None,
) -> list[Verdict]:
    """A verdict for every file of the manifest, and for every file that is too much.

    Args:
        place: where the files are.
        manifest: what is pinned.
        receipts: folder that keeps the receipt; the files' own folder when absent.
        hash_files: False looks at names, sizes and receipts only.
        limit: rate limit of reading.
        jobs: files hashed at once.
        progress: called with path and bytes read.
        opener: how files are opened for hashing.
        note: told when the receipt cannot be written.
    """
    receipt_folder = receipts or place.cache or place.folder
    receipt = load_receipt(receipt_folder)
    lock = threading.Lock()
    changed = False

    def one(entry: FileEntry) -> Verdict:
        nonlocal changed
        verdict, found = _one(place, entry, receipt, hash_files, limit, progress, opener)
        if found:
            with lock:
                receipt.add(entry.path, *found)
                changed = True
        return verdict

    if jobs > 1 and hash_files:
        with ThreadPoolExecutor(jobs) as pool:
            verdicts = list(pool.map(one, manifest.files))
    else:
        verdicts = [one(entry) for entry in manifest.files]
    if changed:
        try:
            save_receipt(receipt_folder, receipt)
        except OSError as error:
            note(f"the receipt cannot be written in {receipt_folder}: {error.strerror}")
    return verdicts + _extras(place, manifest)


def _one(
    place: Place,
    entry: FileEntry,
    receipt: Receipt,
    hash_files: bool,
    limit: RateLimit | None,
    progress: Callable[[str, int], None] | None,
    opener: Opener,
) -> tuple[Verdict, tuple[os.stat_result, str] | None]:
    path = place.folder / entry.path
    try:
        stat = path.stat()
    except OSError as error:
        if path.is_symlink():
            return Verdict(
                entry.path, "dangling", f"its link leads to {os.readlink(path)}, which is not there"
            ), None
        if isinstance(error, FileNotFoundError):
            return Verdict(entry.path, "missing"), None
        return Verdict(entry.path, "unreadable", error.strerror or ""), None
    if stat.st_size != entry.size:
        kind = "short" if stat.st_size < entry.size else "long"
        return Verdict(entry.path, kind, f"{stat.st_size} bytes, {entry.size} expected"), None
    wanted = expected(entry)
    if place.cache and wanted:
        named = blob_hash(path)
        if any(named) and wanted not in named:
            note = f"its blob is {named[0] or named[1]}, {wanted} is pinned"
            return Verdict(entry.path, "stale", note), None
    if wanted is None:
        return Verdict(entry.path, "unhashed", "no hash is published"), None
    if receipt.covers(entry.path, stat, wanted):
        return Verdict(entry.path, "receipt"), None
    if not hash_files:
        return Verdict(entry.path, "unhashed", "not hashed since it last changed"), None
    digest = digest_for(entry)
    try:
        feed(
            path, digest, limit=limit, opener=opener,
            progress=(lambda count: progress(entry.path, count)) if progress else None,
        )  # fmt: skip
        after = path.stat()
    except OSError as error:
        return Verdict(entry.path, "unreadable", error.strerror or str(error)), None
    found = digest.hexdigest()
    if found != wanted:
        return Verdict(entry.path, "corrupt", f"hash {found}, {wanted} expected"), None
    if (after.st_size, after.st_mtime_ns) != (stat.st_size, stat.st_mtime_ns):
        return Verdict(entry.path, "unreadable", "it changed while it was read"), None
    return Verdict(entry.path, "ok"), (stat, found)


def _extras(place: Place, manifest: Manifest) -> list[Verdict]:
    known = {entry.path for entry in manifest.files}
    if not place.folder.is_dir():
        return []
    return [
        Verdict(path, "extra", "not part of the pinned snapshot")
        for path in list_files(place.folder)
        if path not in known
    ]


def manifest_of_cache(place: Place, repo: str, revision: str) -> Manifest | None:
    """A manifest from a cache's own links: blobs are named by their hash. `None` for other places.

    It knows the files that are there, and by their names the shards that the index lists.
    """
    if place.cache is None or not place.folder.is_dir():
        return None
    entries = []
    for name in list_files(place.folder):
        sha256, sha1 = blob_hash(place.folder / name)
        try:
            size = (place.folder / name).stat().st_size
        except OSError:
            size = 0
        entries.append(FileEntry(name, size, sha256, sha1))
    known = {entry.path for entry in entries}
    try:
        listed = set(read_index(place.folder / INDEX).values()) if INDEX in known else set()
    except (SparkloomError, RecursionError):
        listed = set()  # the check of the checkpoint says what is wrong with the index
    entries += [FileEntry(name, 0) for name in sorted(listed - known)]
    return Manifest(repo, revision, tuple(entries))


def verdict_findings(verdicts: list[Verdict], place: Place, what: str = "weights") -> list[Finding]:
    """Findings with one line per file that is not as pinned."""
    findings = []
    bad = [v for v in verdicts if not v.good and v.status not in ("extra", "unhashed")]
    if bad:
        table = "\n".join(f"{v.path}: {v.status}{f' ({v.note})' if v.note else ''}" for v in bad)
        mend = "`sparkloom weights fetch` gets these files again and leaves the good ones"
        findings.append(fail(f"{what}.files", f"{len(bad)} files are not the pinned snapshot's", mend, table))
    shards = [v for v in verdicts if v.status == "extra" and v.path.endswith(".safetensors")]
    if shards:
        table = "\n".join(f"{v.path}: {v.note}" for v in shards)
        mend = "remove them (`weights fetch --prune`): a loader that takes every shard reads them too"
        findings.append(fail(f"{what}.extra", f"{len(shards)} shards are stale or foreign", mend, table))
    other = [v for v in verdicts if v.status == "extra" and v not in shards]
    if other:
        table = "\n".join(v.path for v in other)
        findings.append(
            warn(f"{what}.extra", f"{len(other)} files are not part of the snapshot", "remove them", table)
        )
    unhashed = [v for v in verdicts if v.status == "unhashed"]
    if unhashed:
        table = "\n".join(f"{v.path}: {v.note}" for v in unhashed)
        mend = "run `sparkloom weights verify`"
        findings.append(warn(f"{what}.unhashed", f"{len(unhashed)} files are not verified", mend, table))
    if not findings:
        hashed = sum(v.status == "ok" for v in verdicts)
        text = f"{len(verdicts)} files are exactly the pinned snapshot ({hashed} hashed now)"
        findings.append(ok(f"{what}.files", text, "\n".join(place.notes)))
    return findings


def structure_findings(folder: Path, what: str = "weights") -> list[Finding]:
    """Shards whose header does not fit their size: found without reading data or knowing any hash."""
    bad = []
    for path in sorted(folder.glob("*.safetensors")):
        problem = shard_problem(path)
        if problem:
            bad.append(f"{path.name}: {problem}")
    if bad:
        mend = "fetch these files again (`sparkloom weights fetch`)"
        return [fail(f"{what}.structure", f"{len(bad)} shards are damaged", mend, "\n".join(bad))]
    return []

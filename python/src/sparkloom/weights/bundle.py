"""An offline bundle: one plain tar with the manifest and every file, for sites without internet."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.fetch import locked
from sparkloom.weights.hashing import CHUNK, RateLimit, digest_for, drop_pages, expected
from sparkloom.weights.manifest import MANIFEST_NAME, Manifest, parse_manifest, save_manifest
from sparkloom.weights.places import Place
from sparkloom.weights.receipt import load_receipt, save_receipt, verified

Progress = Callable[[str, int], None]


def pack(place: Place, manifest: Manifest, out: Path, limit: RateLimit | None, progress: Progress) -> int:
    """Write the bundle; returns its size. Every file is hashed while it is copied.

    Raises:
        SparkloomError: a file is missing or wrong (3), or the disk is full (5).
    """
    with fsio.replacing(out) as part:
        try:
            with tarfile.TarFile(part, "w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK) as archive:
                data = json.dumps(manifest.as_dict()).encode()
                head = tarfile.TarInfo(MANIFEST_NAME)
                head.size = len(data)
                archive.addfile(head, io.BytesIO(data))
                for entry in manifest.files:
                    path = place.folder / entry.path
                    item = tarfile.TarInfo(entry.path)
                    item.size, item.mode = entry.size, 0o644
                    if not path.is_file() or path.stat().st_size != entry.size:
                        raise _not_as_pinned(path)
                    with path.open("rb", buffering=0) as file:
                        reader = _Hashing(file, entry, limit, progress)
                        archive.addfile(item, reader)
                        drop_pages(file.fileno())
                    if expected(entry) and reader.digest.hexdigest() != expected(entry):
                        raise _not_as_pinned(path)
        except OSError as error:
            raise SparkloomError(
                f"cannot write the bundle: {error.strerror}", file=out,
                mend="name a place with enough room", code=Exit.RESOURCE,
            ) from error  # fmt: skip
    return out.stat().st_size


def _not_as_pinned(path: Path) -> SparkloomError:
    return SparkloomError(
        "this file is not the pinned snapshot's", file=path,
        mend="`sparkloom weights verify` tells more, `sparkloom weights fetch` mends it", code=Exit.CHECK,
    )  # fmt: skip


class _Hashing(io.RawIOBase):
    """A file that is hashed and paced while it is read."""

    def __init__(self, file: IO[bytes], entry: Any, limit: RateLimit | None, progress: Progress) -> None:
        self._file, self._entry, self._limit, self._progress = file, entry, limit, progress
        self.digest = digest_for(entry)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if self._limit:
            self._limit.spend(len(data))
        self.digest.update(data)
        self._progress(self._entry.path, len(data))
        return data


def unpack(
    bundle: Path, folder: Path, revision: str, limit: RateLimit | None, progress: Progress
) -> Manifest:
    """Bring a bundle's files to `folder`; verified files that are there are not written again.

    Raises:
        SparkloomError: no bundle, another revision, a cut archive, wrong bytes, or no room.
    """
    mend = "make it anew with `sparkloom weights bundle`"
    try:
        with tarfile.open(bundle, "r:") as archive, locked(folder):
            first = archive.next()
            source = archive.extractfile(first) if first and first.name == MANIFEST_NAME else None
            if source is None:
                raise SparkloomError("this is no bundle of weights", file=bundle, mend=mend)
            manifest = parse_manifest(json.loads(source.read(64 << 20)), bundle)
            if manifest.revision != revision:
                raise SparkloomError(
                    f"the bundle has revision {manifest.revision}, {revision} is pinned", file=bundle,
                    field="revision", mend="bring the pinned revision's bundle, or change the cluster file",
                )  # fmt: skip
            if shutil.disk_usage(folder).free < manifest.bytes // 50:
                raise SparkloomError("the disk is full", file=folder, mend="free it", code=Exit.RESOURCE)
            _unpack_files(archive, manifest, folder, limit, progress, bundle)
            save_manifest(folder / MANIFEST_NAME, manifest)
            return manifest
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise SparkloomError(f"the bundle is cut or damaged: {error}", file=bundle, mend=mend) from None
    except OSError as error:
        raise SparkloomError(
            f"cannot unpack the bundle: {error.strerror}", file=error.filename or bundle,
            mend="check path and room", code=Exit.RESOURCE,
        ) from None  # fmt: skip


def _unpack_files(
    archive: tarfile.TarFile,
    manifest: Manifest,
    folder: Path,
    limit: RateLimit | None,
    progress: Progress,
    bundle: Path,
) -> None:
    receipt = load_receipt(folder)
    seen = set()
    for item in archive:
        entry = manifest.entry(item.name)
        if entry is None or not item.isreg():
            continue
        seen.add(entry.path)
        if verified(receipt, folder, entry):
            progress(entry.path, entry.size)
            continue
        source = archive.extractfile(item)
        digest = digest_for(entry)
        target = folder / entry.path
        with fsio.replacing(target) as part:
            with part.open("wb", buffering=0) as file:
                while source is not None and (chunk := source.read(CHUNK)):
                    if limit:
                        limit.spend(len(chunk))
                    digest.update(chunk)
                    file.write(chunk)
                    progress(entry.path, len(chunk))
            found = digest.hexdigest()
            if part.stat().st_size != entry.size or (expected(entry) and found != expected(entry)):
                raise SparkloomError(
                    f"the bundle's {entry.path} has wrong bytes", file=bundle,
                    mend="copy the bundle again, or make it anew", code=Exit.CHECK,
                )  # fmt: skip
        if expected(entry):
            receipt.add(entry.path, target.stat(), found)
            save_receipt(folder, receipt)
    missing = [entry.path for entry in manifest.files if entry.path not in seen]
    if missing:
        raise SparkloomError(
            f"the bundle lacks {len(missing)} files", file=bundle, detail="\n".join(missing[:20]),
            mend="copy the bundle again, or make it anew",
        )  # fmt: skip

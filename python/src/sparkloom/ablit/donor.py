"""Where the donor's tensors are and how they come here: headers, then only the needed byte ranges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.ablit.spec import Spec
from sparkloom.ablit.store import LEDGER, MANIFEST, TENSORS, Manifest, Piece, read_ledger, strays
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.checkpoint import INDEX, read_index
from sparkloom.exl3.headers import MAX_HEADER, Header, read_header
from sparkloom.weights.download import Options, Span, download, new_client
from sparkloom.weights.hub import Source, resolve
from sparkloom.weights.manifest import STATE_FOLDER, FileEntry

SINGLE = "model.safetensors"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Where:
    """Span of one tensor in the donor."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    bytes: int


def quiet(_: str) -> None:
    """A note that nobody reads."""


class Hub:
    """A donor on a model hub.

    Args:
        sources: hubs to ask in order, all of one repository and revision.
        folder: for headers and unfinished downloads.
        options: token, stall time-out, attempts.
    """

    def __init__(self, sources: Sequence[Source], folder: Path, options: Options, note: Note = quiet) -> None:
        self.sources, self.options, self.note = sources, options, note
        self.repo, self.revision = sources[0].repo, sources[0].revision
        self.folder = folder / STATE_FOLDER / "donor" / self.revision
        self.client = new_client(options, sources)
        self._sizes: dict[str, FileEntry] = {}

    def close(self) -> None:
        """Close connections."""
        self.client.close()

    def _files(self) -> dict[str, FileEntry]:
        if not self._sizes:
            failures = []
            for source in self.sources:
                try:
                    self._sizes = {e.path: e for e in resolve(source, self.options.token).files}
                    return self._sizes
                except SparkloomError as error:
                    failures.append(str(error.summary))
                    last = error
            raise SparkloomError(
                "nobody could tell which files the donor has",
                detail="\n".join(dict.fromkeys(failures)), mend=last.mend, code=Exit.NETWORK,
            )  # fmt: skip
        return self._sizes

    def _small(self, path: str) -> Path:
        """A whole small file of the donor."""
        entry = self._files()[path]
        if not (self.folder / path).exists():
            download(self.client, self.sources, entry, self.folder, self.options, note=self.note)
        return self.folder / path

    def span(self, path: str, start: int, size: int, name: str, folder: Path | None = None) -> Path:
        """`size` bytes of a donor's file as a file called `name`."""
        base = folder or self.folder
        entry = FileEntry(name, size)
        download(self.client, self.sources, entry, base, self.options, note=self.note, span=Span(path, start))
        return base / name

    def header(self, path: str) -> Header:
        """The header of one safetensors file, by two range requests (kept for the next run)."""
        entry = self._files().get(path)
        if entry is None:
            raise missing_file(path, self.repo)
        kept = self.folder / f"{path}.header"
        if not kept.exists():
            size = min(8, entry.size)
            length = int.from_bytes(self.span(path, 0, size, f"{path}.length").read_bytes(), "little")
            if not 2 <= length <= min(MAX_HEADER, entry.size - 8):
                raise SparkloomError(
                    "the donor's file has no whole safetensors header",
                    file=f"{self.repo}/{path}", value=length, mend="use another revision of the donor",
                )  # fmt: skip
            self.span(path, 0, 8 + length, f"{path}.header")
        header = read_header(kept, whole=False)
        header = replace(header, file_size=entry.size)
        if header.missing_bytes:
            raise SparkloomError(
                f"the donor's file is cut short: its header promises {header.missing_bytes} bytes more",
                file=f"{self.repo}/{path}", mend="use another revision of the donor",
            )  # fmt: skip
        return header

    def places(self, names: Sequence[str]) -> dict[str, Where]:
        """Where the named tensors are; names that the donor lacks are left out."""
        files = self._files()
        if INDEX in files:
            index = read_index(self._small(INDEX))
        elif SINGLE in files:
            index = dict.fromkeys(names, SINGLE)
        else:
            raise SparkloomError(
                f"the donor has neither {INDEX} nor {SINGLE}",
                file=self.repo, field="ablit.donor_repo", mend="use a repository with safetensors files",
            )  # fmt: skip
        headers = {file: self.header(file) for file in sorted({index[n] for n in names if n in index})}
        return {
            name: where(index[name], headers[index[name]], name)
            for name in names
            if name in index and name in headers[index[name]].tensors
        }


class Local:
    """A donor in a folder of this machine."""

    def __init__(self, folder: Path, repo: str, revision: str) -> None:
        self.folder, self.repo, self.revision = folder, repo, revision

    def close(self) -> None:
        """Nothing to close."""

    def places(self, names: Sequence[str]) -> dict[str, Where]:
        """Where the named tensors are; names that the donor lacks are left out."""
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise SparkloomError(
                "this folder holds no safetensors file", file=self.folder, mend="name the donor's folder"
            )
        found: dict[str, Where] = {}
        for path in files:
            header = read_header(path)
            found |= {n: where(path.name, header, n) for n in names if n in header.tensors}
        return found

    def span(self, path: str, start: int, size: int, name: str, folder: Path | None = None) -> Path:
        """Copy `size` bytes of a donor's file to a file called `name`."""
        base = folder or self.folder
        with (self.folder / path).open("rb") as file:
            file.seek(start)
            fsio.write_bytes(base / name, file.read(size))
        return base / name


def where(file: str, header: Header, name: str) -> Where:
    """Place of one tensor of a header."""
    entry = header.tensors[name]
    return Where(file, entry.dtype, entry.shape, header.data_start + entry.start, entry.nbytes)


def missing_file(path: str, repo: str) -> SparkloomError:
    """The error of an index that names a file that is not there."""
    return SparkloomError(
        "the donor's index names a file that the donor does not have",
        file=f"{repo}/{path}", mend="use another revision of the donor",
    )  # fmt: skip


def fetch(
    donor: Hub | Local, spec: Spec, places: dict[str, Where], progress: Callable[[str, int], None]
) -> tuple[Manifest, list[str]]:
    """Bring every span into the folder, write the manifest last; returns it and what was fetched.

    A tensor that an earlier run brought whole is kept; a cut one goes on where it ended.

    Args:
        places: from `places`, already found fitting.
    """
    folder = Path(spec.folder)
    (folder / TENSORS).mkdir(parents=True, exist_ok=True)
    ledger = read_ledger(folder)
    pieces, fetched = [], []
    for ours, theirs in spec.tensors.items():
        place = places[theirs]
        source = [donor.repo, donor.revision, place.file, place.start, place.bytes]
        row: dict[str, Any] = ledger.get(ours) or {}
        piece = Piece(ours, theirs, place.dtype, place.shape, str(row.get("sha256")), place.file, place.start)
        path = folder / piece.file
        if row.get("source") != source or not path.exists() or digest(path) != piece.sha256:
            path.unlink(missing_ok=True)
            # Named by the revision too: bytes of two revisions must never be joined.
            part = donor.span(
                place.file, place.start, place.bytes, f"{donor.revision}-{ours}", folder / TENSORS
            )
            part.replace(path)
            piece = replace(piece, sha256=digest(path))
            fetched.append(ours)
            ledger[ours] = {"source": source, "sha256": piece.sha256}
            fsio.write_json(folder / LEDGER, ledger)
        progress(ours, place.bytes)
        pieces.append(piece)
    manifest = Manifest(donor.repo, donor.revision, tuple(pieces))
    fsio.write_text(folder / MANIFEST, manifest.text())
    for path in list(strays(folder, manifest)):
        path.unlink()
    return manifest, fetched


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

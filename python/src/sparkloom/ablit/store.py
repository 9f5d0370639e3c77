"""The folder of an edit: the donor's bytes, one file a tensor, a manifest with their hashes, a receipt."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.ablit.spec import Spec
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.headers import DTYPE_BITS

MANIFEST, RECEIPT, LEDGER, TENSORS = "manifest.json", "receipt.json", "fetched.json", "tensors"
MEND = "run `sparkloom ablit fetch CLUSTER` again on this node"
_NUMPY = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}


@dataclass(frozen=True)
class Piece:
    """One tensor of the donor.

    Args:
        tensor: its name in our checkpoint; the file is called after it.
        donor_tensor: its name in the donor.
        dtype: BF16, F16 or F32.
        shape: its shape.
        sha256: of its bytes.
        donor_file, start: where in the donor they are, `start` in bytes of that file.
    """

    tensor: str
    donor_tensor: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    donor_file: str
    start: int

    @property
    def bytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8

    @property
    def file(self) -> str:
        """Path below the folder."""
        return f"{TENSORS}/{self.tensor}.bin"


@dataclass(frozen=True)
class Manifest:
    """All tensors of the donor, pinned."""

    repo: str
    revision: str
    pieces: tuple[Piece, ...]

    def text(self) -> str:
        """The file's content; its SHA-256 is the pin."""
        rows = [{**asdict(p), "shape": list(p.shape), "bytes": p.bytes} for p in self.pieces]
        value = {"format": 1, "donor": {"repo": self.repo, "revision": self.revision}, "tensors": rows}
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    @property
    def sha256(self) -> str:
        """The pin."""
        return hashlib.sha256(self.text().encode()).hexdigest()


def parse(data: bytes, file: Path) -> Manifest:
    """A manifest from its bytes.

    Raises:
        SparkloomError: it is none.
    """
    try:
        value: Any = json.loads(data)
        if value["format"] != 1:
            raise ValueError
        pieces = tuple(
            Piece(
                str(row["tensor"]), str(row["donor_tensor"]), str(row["dtype"]),
                tuple(int(n) for n in row["shape"]), str(row["sha256"]), str(row["donor_file"]),
                int(row["start"]),
            )
            for row in value["tensors"]
        )  # fmt: skip
        if not pieces or any(p.dtype not in _NUMPY or "/" in p.tensor for p in pieces):
            raise ValueError
        return Manifest(str(value["donor"]["repo"]), str(value["donor"]["revision"]), pieces)
    except (ValueError, KeyError, TypeError):
        raise SparkloomError("this is no manifest of a weight edit", file=file, mend=MEND) from None


def load(spec: Spec) -> Manifest:
    """The manifest of a fetched donor, held to its pin and to the tensors that are asked for.

    Raises:
        SparkloomError: absent, not the pinned one, or of other tensors.
    """
    path = Path(spec.folder) / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SparkloomError(
            f"the donor's tensors are not here: {error.strerror}", file=path, mend=MEND, code=Exit.CHECK
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if spec.manifest_sha256 is not None and found != spec.manifest_sha256:
        raise SparkloomError(
            f"this manifest has the SHA-256 {found}, another is pinned",
            file=path,
            field="ablit.manifest_sha256",
            value=spec.manifest_sha256,
            mend="fetch again on this node; if the new donor is meant, pin the new hash in the cluster file",
            code=Exit.CHECK,
        )
    manifest = parse(data, path)
    have = {p.tensor: p.donor_tensor for p in manifest.pieces}
    if have != spec.tensors:
        other = sorted(have.items() ^ spec.tensors.items())
        raise SparkloomError(
            f"the manifest is of other tensors than the cluster file asks for, the first is {other[0][0]}",
            file=path, field="ablit.tensor", value=other[0][0], mend=MEND, code=Exit.CHECK,
        )  # fmt: skip
    return manifest


def read(folder: Path, piece: Piece) -> NDArray[Any]:
    """The raw elements of a piece (BF16 as uint16 patterns), its bytes held to the manifest's hash.

    Raises:
        SparkloomError: absent, cut short, or changed.
    """
    path = folder / piece.file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SparkloomError(
            f"cannot read the donor's tensor: {error.strerror}", file=path, mend=MEND, code=Exit.CHECK
        ) from None
    if len(data) != piece.bytes:
        raise SparkloomError(
            f"the donor's tensor is cut short: {len(data)} of {piece.bytes} bytes",
            file=path, mend=MEND, code=Exit.CHECK,
        )  # fmt: skip
    if hashlib.sha256(data).hexdigest() != piece.sha256:
        raise SparkloomError(
            "the donor's tensor was changed: another hash than in the manifest",
            file=path, field="sha256", value=piece.sha256, mend=MEND, code=Exit.CHECK,
        )  # fmt: skip
    return np.frombuffer(data, _NUMPY[piece.dtype]).reshape(piece.shape)


def floats(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Elements as float32."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32)


def read_ledger(folder: Path) -> dict[str, Any]:
    """What an unfinished or earlier fetch brought: tensor -> the row of its manifest; {} without one."""
    try:
        value = json.loads((folder / LEDGER).read_bytes())
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def strays(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Files of tensors that the manifest does not name."""
    keep = {folder / p.file for p in manifest.pieces}
    yield from (p for p in (folder / TENSORS).glob("*.bin") if p not in keep)

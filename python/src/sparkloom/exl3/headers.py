"""Safetensors files by their headers: what is in them and where, without reading the data.

The `safetensors` library refuses a damaged file as a whole and has no bfloat16 in NumPy. Here a file may be
cut short and still be described, tensors are read as float32, and a header can be written before its data.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import Exit, SparkloomError

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
}
_NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
_NAMES = {np.dtype(code): name for name, code in _NUMPY.items()}
FLOATS = ("BF16", "F16", "F32", "F64")
"""Types of weights that `read_floats` reads."""

MAX_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: `start` and `end` are bytes from the start of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.end - self.start


@dataclass(frozen=True)
class Header:
    """A file's header, checked in itself."""

    path: Path
    tensors: dict[str, Entry]
    data_start: int
    file_size: int
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def missing_bytes(self) -> int:
        """How many bytes the file lacks of what its header promises."""
        needed = self.data_start + max((t.end for t in self.tensors.values()), default=0)
        return max(0, needed - self.file_size)


def read_header(path: Path, *, whole: bool = True) -> Header:
    """Read and check a header.

    Args:
        path: a safetensors file.
        whole: also refuse a file that is shorter than its header says.

    Raises:
        SparkloomError: no such file, no safetensors header, or one that contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
                raise _bad(path, "this is no whole safetensors header", f"{size} bytes in the file")
            raw = file.read(length)
    except OSError as error:
        raise SparkloomError(
            f"cannot read the file: {error.strerror}",
            file=path,
            mend="check the path and its permissions",
            code=Exit.INPUT,
        ) from None
    try:
        content = json.loads(raw)
        if not isinstance(content, dict):
            raise TypeError
        metadata = content.pop("__metadata__", {})
        tensors = {name: _entry(path, name, value) for name, value in content.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _bad(path, "the safetensors header is not what the format asks for") from None
    header = Header(path, tensors, 8 + length, size, metadata if isinstance(metadata, dict) else {})
    if whole and header.missing_bytes:
        raise truncated(header)
    return header


def truncated(header: Header) -> SparkloomError:
    """The error of a file that is shorter than its header says."""
    return _bad(
        header.path,
        f"the file is cut short: its header promises {header.file_size + header.missing_bytes} bytes,"
        f" it has {header.file_size}",
    )


def _bad(path: Path, summary: str, value: object = None) -> SparkloomError:
    return SparkloomError(summary, file=path, value=value, mend="fetch this file again")


def _entry(path: Path, name: str, value: Mapping[str, Any]) -> Entry:
    dtype, shape, (start, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise SparkloomError(
            "unknown tensor type",
            file=path,
            field=name,
            value=dtype,
            mend="use a newer Sparkloom or another file",
        )
    if not all(isinstance(v, int) and v >= 0 for v in (*shape, start, end)):
        raise ValueError
    if (end - start) * 8 != math.prod(shape) * bits:
        raise _bad(path, f"the tensor {name} has {end - start} bytes, which is not {dtype} {list(shape)}")
    return Entry(name, dtype, shape, start, end)


def read_array(header: Header, entry: Entry, start: int = 0, count: int | None = None) -> NDArray[Any]:
    """Elements of a tensor, in one dimension unless all are read; BF16 comes as uint16 bit patterns.

    Args:
        header: of the file.
        entry: the tensor; any type but those of fewer than 8 bits and FP8.
        start, count: a range of elements; all if left out.
    """
    code = "<u2" if entry.dtype == "BF16" else _NUMPY.get(entry.dtype)
    if code is None:
        raise SparkloomError(
            f"tensors of type {entry.dtype} cannot be read here", file=header.path, field=entry.name
        )
    if header.missing_bytes and header.data_start + entry.end > header.file_size:
        raise truncated(header)
    size = np.dtype(code).itemsize
    total = math.prod(entry.shape)
    array = np.fromfile(
        header.path,
        dtype=code,
        count=total if count is None else count,
        offset=header.data_start + entry.start + start * size,
    )
    return array.reshape(entry.shape) if count is None else array


def read_floats(
    header: Header, entry: Entry, start: int = 0, count: int | None = None
) -> NDArray[np.float32]:
    """Elements of a floating-point tensor as float32; see `read_array`."""
    raw = read_array(header, entry, start, count)
    if entry.dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The format's name of a NumPy type."""
    return _NAMES[np.dtype(dtype)]


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file whose tensors (name, type, shape) follow in this order."""
    content: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, dtype, shape in tensors:
        nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    raw = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)  # the data section starts at a multiple of 8
    return len(raw).to_bytes(8, "little") + raw


def pread(path: Path, offset: int, count: int) -> bytes:
    """A few bytes of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, count, offset)
    finally:
        os.close(fd)

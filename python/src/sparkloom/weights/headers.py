"""Read safetensors headers without the data, and notice a file that is too short for its header."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError

MAX_HEADER = 100 << 20
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16,
    "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_MEND = "fetch the file again (`sparkloom weights fetch`)"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it; offsets are relative to the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one safetensors file."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    size: int  # bytes that the whole file must have


def read_header(path: Path) -> Header:
    """Read and check one file's header; the data is not read.

    Raises:
        SparkloomError: not a safetensors file, or its size does not match its header.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else None
            if length is None or length > MAX_HEADER or 8 + length > size:
                raise _wrong("not a safetensors file, or cut inside its header", path)
            raw = file.read(length)
    except OSError as error:
        raise _wrong(f"cannot read it: {error.strerror}", path) from None
    header = parse_header(raw, path)
    if header.size != size:
        kind = "short" if size < header.size else "long"
        raise _wrong(f"the file is too {kind}: its header describes {header.size} bytes", path, "size", size)
    return header


def parse_header(raw: bytes, file: object) -> Header:
    """Check the JSON of a header.

    Raises:
        SparkloomError: names the tensor that is wrong.
    """
    try:
        value: Any = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _wrong(f"the header is no JSON: {error}", file) from None
    if not isinstance(value, dict):
        raise _wrong("the header is no JSON object", file)
    metadata = value.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _wrong("the header's metadata is no object", file, "__metadata__")
    base = 8 + len(raw)
    tensors = {name: _tensor(name, info, base, file) for name, info in value.items()}
    end = base
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != end:
            raise _wrong("the tensors overlap or leave a gap", file, name)
        end = tensor.end
    return Header(tensors, {str(k): str(v) for k, v in metadata.items()}, end)


def _tensor(name: str, info: Any, base: int, file: object) -> TensorInfo:
    if not isinstance(info, dict):
        raise _wrong("a tensor's entry is no object", file, name)
    entry: dict[str, Any] = info
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _wrong("unknown data type", file, name, dtype)
    if shape is None or not _sizes(shape):
        raise _wrong("not a shape", file, name, shape)
    if offsets is None or not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong("not a pair of offsets", file, name, offsets)
    bits = DTYPE_BITS[dtype]
    for extent in shape:
        bits *= extent
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        raise _wrong("shape and offsets do not agree", file, name, info)
    return TensorInfo(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 60 for item in value)


def _wrong(summary: str, file: object, field: str | None = None, value: object = None) -> SparkloomError:
    return SparkloomError(summary, file=file, field=field, value=value, mend=_MEND)

"""Slim CUDA libraries: keep one machine code per fat binary, zero the rest.

The file keeps its size and every offset, so it still loads; the zeros vanish in the archive. A fat binary
container starts with the magic 0xBA55ED50 (header 16 bytes: magic, version u16, header size u16, size of
the rest u64), then entries: kind u16 (1 PTX, 2 machine code), version u16, header size u32, payload size
u64, ..., compute capability times ten as u32 at offset 28, payload after the header.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, CODE = 1, 2


@dataclass(frozen=True)
class Entry:
    """One entry: kind, capability times ten, place and size of its payload."""

    kind: int
    arch: int
    start: int
    size: int


def containers(data: bytes | bytearray) -> list[list[Entry]]:
    """All fat binary containers of a file, in order."""
    found, at = [], data.find(MAGIC)
    while at >= 0:
        following = at + 4
        if len(data) - at >= 16:
            _, header, rest = struct.unpack_from("<HHQ", data, at + 4)
            if header == 16 and rest <= len(data) - at - 16:
                found.append(entries(data, at + 16, at + 16 + rest))
                following = max(at + 16 + rest, following)
        at = data.find(MAGIC, following)
    return found


def entries(data: bytes | bytearray, start: int, end: int) -> list[Entry]:
    """Entries between two offsets; stops at what is none."""
    found = []
    while start + 32 <= end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, start)
        if not 32 <= header <= 4096 or start + header + size > end:
            break
        arch = struct.unpack_from("<I", data, start + 28)[0]
        found.append(Entry(kind, arch, start + header, size))
        start += header + size
    return found


def kept(container: list[Entry], arch: int, exact: bool = False) -> list[Entry]:
    """Entries to keep for a GPU of capability `arch`.

    The best machine code that runs there: of the same major capability, not newer. Where there is none, the
    newest PTX that the driver can compile for it. (Code of an older major does not run.)

    Args:
        exact: keep machine code of exactly this capability, or nothing.
    """
    codes = [entry for entry in container if entry.kind == CODE]
    if exact:
        return [entry for entry in codes if entry.arch == arch]
    runs = [entry for entry in codes if entry.arch // 10 == arch // 10 and entry.arch <= arch]
    found = runs or [entry for entry in container if entry.kind == PTX and entry.arch <= arch]
    best = max((entry.arch for entry in found), default=None)
    return [entry for entry in found if entry.arch == best]


def slim(data: bytes, arch: int, exact: bool = False) -> bytes:
    """A copy of the file with the payloads of all other entries zeroed."""
    out = bytearray(data)
    for container in containers(data):
        keep = kept(container, arch, exact)
        for entry in container:
            if entry not in keep:
                out[entry.start : entry.start + entry.size] = bytes(entry.size)
    return bytes(out)

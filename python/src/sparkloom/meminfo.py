"""Parse `/proc/meminfo`."""

from __future__ import annotations

import re
from pathlib import Path

from sparkloom.errors import SparkloomError

_LINE = re.compile(r"^([A-Za-z0-9_()]+):\s+(\d{1,18})( kB)?\s*$", re.MULTILINE)


def parse_meminfo(text: str, file: object = "/proc/meminfo") -> dict[str, int]:
    """Bytes (or counts, for lines without a unit) by name.

    Raises:
        SparkloomError: `MemTotal`, `MemFree` or `MemAvailable` is not there.
    """
    found = {name: int(value) * (1024 if unit else 1) for name, value, unit in _LINE.findall(text)}
    for name in ("MemTotal", "MemFree", "MemAvailable"):
        if name not in found:
            mend = "paste the whole output of `cat /proc/meminfo` of that node"
            raise SparkloomError("this is no /proc/meminfo", file=file, field=name, mend=mend)
    return found


def read_meminfo(path: Path) -> dict[str, int]:
    """`parse_meminfo` of a file.

    Raises:
        SparkloomError: the file cannot be read or is no meminfo.
    """
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise SparkloomError(
            f"cannot read it: {error.strerror}", file=path, mend="give a saved /proc/meminfo"
        ) from None
    return parse_meminfo(text, path)

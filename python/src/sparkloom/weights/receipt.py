"""The receipt: which files were hashed, with the size and time that they had then.

A later verification of an unchanged file reads its metadata only. A changed size, time or expected hash voids
the file's line.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from sparkloom import fsio
from sparkloom.weights.manifest import STATE_FOLDER, FileEntry

RECEIPT = f"{STATE_FOLDER}/receipt.json"


@dataclass(frozen=True, slots=True)
class Line:
    """One hashed file."""

    size: int
    mtime_ns: int
    hash: str


@dataclass(slots=True)
class Receipt:
    """All hashed files of a folder."""

    lines: dict[str, Line] = field(default_factory=dict)

    def covers(self, path: str, stat: os.stat_result, wanted: str) -> bool:
        """Whether this very file was found to have the hash `wanted`."""
        return self.lines.get(path) == Line(stat.st_size, stat.st_mtime_ns, wanted)

    def add(self, path: str, stat: os.stat_result, found: str) -> None:
        """Note a hashed file."""
        self.lines[path] = Line(stat.st_size, stat.st_mtime_ns, found)


def load_receipt(folder: Path) -> Receipt:
    """The receipt of a folder; an absent or damaged one is empty, so that everything is hashed again."""
    try:
        rows = json.loads((folder / RECEIPT).read_bytes())["files"]
        lines = {
            str(path): Line(int(row["size"]), int(row["mtime_ns"]), str(row["hash"]))
            for path, row in rows.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Receipt()
    return Receipt(lines)


def save_receipt(folder: Path, receipt: Receipt) -> None:
    """Write the receipt whole."""
    rows = {
        path: {"size": line.size, "mtime_ns": line.mtime_ns, "hash": line.hash}
        for path, line in sorted(receipt.lines.items())
    }
    fsio.write_json(folder / RECEIPT, {"format": 1, "files": rows})


def verified(receipt: Receipt, folder: Path, entry: FileEntry) -> bool:
    """Whether the receipt vouches for the file as it is now."""
    wanted = entry.sha256 or entry.git_sha1
    if wanted is None:
        return False
    try:
        stat = (folder / entry.path).stat()
    except OSError:
        return False
    return stat.st_size == entry.size and receipt.covers(entry.path, stat, wanted)

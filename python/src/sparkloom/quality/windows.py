"""Sealed windows: token ids cut from a text once, with a hash, so that every server reads the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.errors import SparkloomError

SCHEMA = "sparkloom-windows-1"


@dataclass(frozen=True)
class Windows:
    """Equal windows of token ids.

    Attributes:
        rows: token ids, `[windows][length]`.
        source: what the text was (a name, not a path).
        seal: sha256 over the rows.
    """

    rows: tuple[tuple[int, ...], ...]
    source: str
    seal: str

    def save(self, path: Path) -> None:
        """Write the windows atomically."""
        value = {"schema": SCHEMA, "source": self.source, "seal": self.seal, "rows": self.rows}
        fsio.write_text(path, json.dumps(value) + "\n")


def seal(rows: tuple[tuple[int, ...], ...]) -> str:
    """sha256 of the rows as compact JSON."""
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def cut(ids: list[int], count: int, length: int, source: str) -> Windows:
    """Cut the first `count` windows of `length` tokens.

    Raises:
        SparkloomError: the text is too short.
    """
    if len(ids) < count * length:
        raise SparkloomError(
            f"the text has {len(ids)} tokens, {count} windows of {length} need {count * length}",
            file=source,
            mend="give a longer text, or fewer or shorter windows",
        )
    rows = tuple(tuple(ids[i * length : (i + 1) * length]) for i in range(count))
    return Windows(rows, source, seal(rows))


def load(path: Path) -> Windows:
    """Read windows and check their seal.

    Raises:
        SparkloomError: unreadable, another schema, or changed after sealing.
    """
    try:
        value: Any = json.loads(path.read_text())
        rows = tuple(tuple(int(t) for t in row) for row in value["rows"])
        kept, source, schema = str(value["seal"]), str(value["source"]), value["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SparkloomError(
            f"not a windows file: {error}", file=path, mend="make one with `sparkloom quality seal`"
        ) from error
    if schema != SCHEMA:
        raise SparkloomError("unknown schema", file=path, field="schema", value=schema, mend=f"use {SCHEMA}")
    if seal(rows) != kept:
        raise SparkloomError(
            "the windows were changed after they were sealed",
            file=path,
            field="seal",
            value=kept,
            mend="make the file again with `sparkloom quality seal`; results of the old one do not compare",
        )
    return Windows(rows, source, kept)

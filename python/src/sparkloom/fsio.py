"""Files that are whole or absent: write beside, fsync, rename."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success fsync it and rename it over `path`.

    On an exception the sibling is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        fsync(part)
        os.replace(part, path)
        fsync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Flush a file or folder to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` atomically."""
    with replacing(path) as part:
        part.write_bytes(data)
        part.chmod(mode)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write UTF-8 `text` to `path` atomically."""
    write_bytes(path, text.encode(), mode)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write `value` as indented JSON with a final newline, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", mode)

"""Read `/sys`, `/proc` and `/etc` below a root folder: `/` on a real machine, a saved tree elsewhere.

The kernel's files fail in many ways (absent, `EINVAL` on an empty GID slot or on `carrier` of a downed
interface, not permitted), so every reader answers `None` or an empty list instead of raising. Symbolic
links are followed inside the root only: a saved tree can not point at files of the machine that reads it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

_MAX_LINKS = 40
_MAX_BYTES = 16 << 20


def natural(name: str) -> tuple[Any, ...]:
    """Sort key that puts `port2` before `port10` and `rocep1s0f0` before `roceP2p1s0f0`."""
    parts = re.split(r"(\d+)", name.casefold())
    return (*((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts), (0, 0, name))


class SysRoot:
    """A file system tree seen from its own root.

    Args:
        path: the folder that stands for `/`.
    """

    def __init__(self, path: str | Path = "/") -> None:
        self.path = Path(path)

    @property
    def live(self) -> bool:
        """Whether this is the running machine, so that programs may be asked as well."""
        return self.path.resolve() == Path("/")

    def resolve(self, name: str) -> Path | None:
        """The file that `name` (relative to the root) ends at; `None` for a loop of links."""
        parts = [p for p in reversed(name.split("/")) if p not in ("", ".")]
        done: list[str] = []
        links = 0
        while parts:
            part = parts.pop()
            if part == "..":
                if done:
                    done.pop()
                continue
            here = self.path.joinpath(*done, part)
            try:
                target = os.readlink(here)
            except (OSError, ValueError):
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                done.clear()
            parts.extend(p for p in reversed(target.split("/")) if p not in ("", "."))
        return self.path.joinpath(*done)

    def bytes(self, name: str) -> bytes | None:
        """The file's content (at most 16 MiB), or `None` when it cannot be read."""
        path = self.resolve(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                return file.read(_MAX_BYTES)
        except (OSError, ValueError):
            return None

    def text(self, name: str) -> str | None:
        """The file's text without surrounding white space, or `None`."""
        data = self.bytes(name)
        return None if data is None else data.decode("utf-8", "replace").strip("\0 \t\r\n")

    def integer(self, name: str) -> int | None:
        """The file's first word as an integer, or `None`."""
        words = (self.text(name) or "").split()
        try:
            return int(words[0], 0) if words else None
        except ValueError:
            return None

    def json(self, name: str) -> Any:
        """The file's JSON value, or `None` when it is absent or no JSON."""
        try:
            return json.loads(self.text(name) or "null")
        except (ValueError, RecursionError):
            return None

    def names(self, name: str) -> list[str]:
        """The entries of a folder in natural order; empty when there is no such folder."""
        path = self.resolve(name)
        try:
            return sorted(os.listdir(path), key=natural) if path is not None else []
        except (OSError, ValueError):
            return []

    def exists(self, name: str) -> bool:
        """Whether `name` leads to something that exists."""
        path = self.resolve(name)
        return path is not None and os.path.exists(path)

    def link(self, name: str) -> str | None:
        """The last component of a symbolic link's target (it may dangle), or `None`."""
        folder, _, last = name.rstrip("/").rpartition("/")
        parent = self.resolve(folder)
        try:
            return os.path.basename(os.readlink(parent / last).rstrip("/")) or None if parent else None
        except (OSError, ValueError):
            return None

    def is_dir(self, name: str) -> bool:
        """Whether `name` leads to a folder."""
        path = self.resolve(name)
        return path is not None and os.path.isdir(path)

"""Logs of the last N generations: one folder each, the oldest removed first."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from sparkloom.errors import SparkloomError

_NAME = re.compile(r"generation-(\d{8})")


@dataclass(frozen=True)
class Shelf:
    """The folder with one sub-folder per generation."""

    folder: Path
    keep: int = 10

    def path(self, generation: int) -> Path:
        """The folder of a generation, made or not."""
        return self.folder / f"generation-{generation:08d}"

    def new(self, generation: int) -> Path:
        """The folder of a generation, made; older ones beyond `keep` are removed."""
        path = self.path(generation)
        path.mkdir(parents=True, exist_ok=True)
        for old in self.generations()[: -self.keep]:
            shutil.rmtree(self.path(old), ignore_errors=True)
        return path

    def generations(self) -> list[int]:
        """Those that are kept, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(m[1]) for m in found if m)

    def log(self, generation: int | None = None) -> Path:
        """The rank's log of a generation, by default of the newest.

        Raises:
            SparkloomError: there is none; the text lists what is kept.
        """
        kept = self.generations()
        if generation is None and kept:
            generation = kept[-1]
        if generation is None or generation not in kept:
            raise SparkloomError(
                "no log of that generation is kept" if kept else "no generation has been launched yet",
                value=generation,
                mend="kept: " + (", ".join(map(str, kept)) or "none"),
            )
        return self.path(generation) / "rank.log"

"""Where weights are: a plain folder, or a snapshot inside an existing hub cache.

A cache is addressed by revision only. Its `refs/main` moves with the repository and says nothing about the
snapshot that is pinned.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from sparkloom.weights.manifest import MANIFEST_NAME, STATE_FOLDER

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that has or should have the snapshot's files.

    Args:
        folder: the files, by their repository paths.
        cache: the hub cache that it belongs to, or `None`.
        notes: what is remarkable about the cache (a moved ref, other snapshots).
    """

    folder: Path
    cache: Path | None = None
    notes: tuple[str, ...] = field(default=())


def find_place(path: Path, repo: str, revision: str) -> Place:
    """The snapshot of `repo` at `revision` at `path`: a hub cache (or its parent), else a plain folder."""
    name = f"models--{repo.replace('/', '--')}"
    for base in (path, path / "hub", path / name):
        cache = base if base.name == name else base / name
        if (cache / "snapshots").is_dir():
            return Place(cache / "snapshots" / revision, cache, tuple(_notes(cache, revision)))
    return Place(path)


def _notes(cache: Path, revision: str) -> list[str]:
    notes = []
    snapshots = sorted(p.name for p in (cache / "snapshots").iterdir() if p.is_dir())
    try:
        main = (cache / "refs/main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    if main and main != revision:
        here = "" if main in snapshots else ", which is not in this cache"
        notes.append(f"refs/main is at {main}{here}; the pinned revision is what counts")
    others = [name for name in snapshots if name != revision]
    if others:
        notes.append(f"other snapshots in this cache: {', '.join(others)}")
    return notes


def blob_hash(path: Path) -> tuple[str | None, str | None]:
    """(sha256, git id) that a cache link's target is named by; (None, None) for a plain file."""
    try:
        name = Path(os.readlink(path)).name
    except OSError:
        return None, None
    if _SHA256.fullmatch(name):
        return name, None
    return (None, name) if _SHA1.fullmatch(name) else (None, None)


def list_files(folder: Path) -> list[str]:
    """Paths of all files and links below `folder`, without our own state; links are not followed."""
    found = []
    for parent, folders, files in os.walk(folder, followlinks=False):
        base = Path(parent).relative_to(folder)
        # `.cache` is what the hub's own client leaves in a plain folder.
        if base == Path("."):
            folders[:] = [name for name in folders if name not in (STATE_FOLDER, ".cache", ".git")]
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        found += [str(base / name) for name in (*files, *links)]
    return sorted(name for name in found if name != MANIFEST_NAME)

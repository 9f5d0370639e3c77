"""The manifest of a snapshot: repository, revision, and size and hash of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sparkloom import fsio
from sparkloom.errors import SparkloomError

MANIFEST_NAME = "sparkloom-manifest.json"
STATE_FOLDER = ".sparkloom"
"""Receipts, locks and partial downloads, below the folder of the weights."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_MEND = "write it anew with `sparkloom weights fetch`, or get it from where the weights came from"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the snapshot.

    `sha256` is the hub's published id of a large file; small files of a repository have a git blob id only.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def hashed(self) -> bool:
        """Whether the content can be checked."""
        return self.sha256 is not None or self.git_sha1 is not None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A pinned snapshot."""

    repo: str
    revision: str
    files: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size for entry in self.files)

    def entry(self, path: str) -> FileEntry | None:
        """The entry of one file."""
        return next((entry for entry in self.files if entry.path == path), None)

    def as_dict(self) -> dict[str, Any]:
        """The manifest as JSON."""
        rows = []
        for entry in self.files:
            row: dict[str, Any] = {"path": entry.path, "size": entry.size}
            if entry.sha256:
                row["sha256"] = entry.sha256
            if entry.git_sha1:
                row["git_sha1"] = entry.git_sha1
            rows.append(row)
        return {"format": 1, "repo": self.repo, "revision": self.revision, "files": rows}


def safe_path(path: str) -> bool:
    """Whether a relative path stays below its folder and out of our own state."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and not path.startswith("/")
        and "\\" not in path
        and "\0" not in path
        and ".." not in parts
        and str(PurePosixPath(path)) == path
        and parts[0] != STATE_FOLDER
        and path.isprintable()
        and all(len(part.encode()) <= 255 for part in parts)
    )


def make_manifest(repo: str, revision: str, files: Iterable[FileEntry]) -> Manifest:
    """A manifest with its files in order."""
    return Manifest(repo, revision, tuple(sorted(files, key=lambda entry: entry.path)))


def parse_manifest(value: Any, file: object) -> Manifest:
    """A manifest from its JSON value.

    Raises:
        SparkloomError: names the field that is wrong.
    """

    def wrong(summary: str, field: str, seen: object = None) -> SparkloomError:
        return SparkloomError(summary, file=file, field=field, value=seen, mend=_MEND)

    if not isinstance(value, dict):
        raise wrong("a manifest is a JSON object", "$")
    repo, revision, rows = (value.get(key) for key in ("repo", "revision", "files"))
    if not isinstance(repo, str) or not isinstance(revision, str):
        raise wrong("a manifest names its repository and revision", "repo, revision", [repo, revision])
    if not isinstance(rows, list):
        raise wrong("a manifest lists its files", "files")
    files = {}
    for i, row in enumerate(rows):
        where = f"files[{i}]"
        if not isinstance(row, dict):
            raise wrong("not an object", where, row)
        path, size = row.get("path"), row.get("size")
        if not isinstance(path, str) or not safe_path(path):
            raise wrong("not a path below the folder", f"{where}.path", path)
        if path in files:
            raise wrong("the file is listed twice", f"{where}.path", path)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise wrong("not a size in bytes", f"{where}.size", size)
        sha256, sha1 = row.get("sha256"), row.get("git_sha1")
        for name, text, form in (("sha256", sha256, _SHA256), ("git_sha1", sha1, _SHA1)):
            if text is not None and not (isinstance(text, str) and form.fullmatch(text)):
                raise wrong("not a hash in lower-case hex", f"{where}.{name}", text)
        files[path] = FileEntry(path, size, sha256, sha1)
    return make_manifest(repo, revision, files.values())


def load_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        SparkloomError: it cannot be read or is none.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise SparkloomError(f"cannot read the manifest: {error.strerror}", file=path, mend=_MEND) from None
    except (ValueError, RecursionError) as error:
        raise SparkloomError(f"the manifest is no JSON: {error}", file=path, mend=_MEND) from None
    return parse_manifest(value, path)


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest whole."""
    fsio.write_json(path, manifest.as_dict())

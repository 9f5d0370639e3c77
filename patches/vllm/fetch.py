"""Fetch the Python files of the pinned vLLM (12 MB of its 333 MB wheel), for the tests of the patches.

pip names the wheel and reads parts of it, so its own settings (index, proxy, certificates) hold. The wheel
must be the one that `python/poetry.lock` pins, its list of files the one pinned here, each file the one on
that list.
The cache is `$XDG_CACHE_HOME/sparkloom/sources/vllm-VERSION`; it is whole or absent.

Exit status: 0 the tree is there, 4 what came is not what is pinned, 6 it could not be fetched.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

VERSION = "0.33.0"
PLATFORM = "manylinux_2_28_aarch64"
RECORD = f"vllm-{VERSION}.dist-info/RECORD"
RECORD_SHA256 = "4f2ac04516c04212a6e189478ba1f19ff3171102d6ccfb48627302a963335fb8"
LOCK = Path(__file__).parents[2] / "python/poetry.lock"
PIECE = 1 << 20
CHOICE = ["--no-deps", "--only-binary=:all:", f"--platform={PLATFORM}", "--python-version=3.12"]


class Unreachable(Exception):
    """The wheel could not be fetched from here."""


class Mismatch(Exception):
    """What was fetched is not what is pinned."""


def target() -> Path:
    """Where the tree lies or will lie."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sparkloom/sources" / f"vllm-{VERSION}"


def complete(root: Path) -> bool:
    """Whether `root` holds the whole tree: its list of files is written last."""
    record = root / RECORD
    return record.is_file() and hashlib.sha256(record.read_bytes()).hexdigest() == RECORD_SHA256


def locate() -> str:
    """Address of the pinned wheel, from pip's report.

    Raises:
        Unreachable: pip found no wheel.
        Mismatch: the index offers another file than the lock file pins.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            *CHOICE,
        ]
        command += ["--retries=1", "--timeout=20", f"--target={folder}", "--report=-", f"vllm=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unreachable((done.stderr.strip() or "pip gave no reason").splitlines()[-1])
    found = json.loads(done.stdout)["install"][0]["download_info"]
    digest = found["archive_info"]["hashes"]["sha256"]
    if f"sha256:{digest}" not in LOCK.read_text():
        raise Mismatch(f"the index offers vllm {VERSION} with sha256 {digest}; {LOCK.name} pins another")
    return str(found["url"])


@contextmanager
def opened(url: str) -> Iterator[zipfile.ZipFile]:
    """The wheel, read piecewise with pip's own reader; the whole file where that cannot be.

    Raises:
        Unreachable: neither way worked.
    """
    try:
        from pip._internal.commands import create_command
        from pip._internal.network import lazy_wheel

        command: Any = create_command("download")
        with command.main_context():
            options, _ = command.parse_args(["--retries=1", "--timeout=20", "vllm"])
            session = command.get_default_session(options)
            with lazy_wheel.LazyZipOverHTTP(url, session, PIECE) as lazy, tempfile.TemporaryFile() as local:
                gather(lazy, local)
                yield zipfile.ZipFile(local)
                return
    except (ImportError, AttributeError, TypeError, lazy_wheel.HTTPRangeRequestUnsupported) as error:
        print(f"fetch: no partial reading ({error}); taking the whole wheel", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", *CHOICE, f"--dest={folder}"]
        done = subprocess.run([*command, f"vllm=={VERSION}"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unreachable(done.stderr.strip().splitlines()[-1])
        yield zipfile.ZipFile(next(Path(folder).glob("*.whl")))


def gather(remote: Any, local: IO[bytes]) -> None:
    """Copy the parts that hold wanted members and the directory, in as few reads as the gaps allow."""
    wheel = zipfile.ZipFile(remote)
    members = sorted(wheel.infolist(), key=lambda member: member.header_offset)
    ends = [member.header_offset for member in members[1:]] + [wheel.start_dir]
    spans: list[list[int]] = []
    for member, end in zip(members, ends, strict=True):
        if not wanted(member.filename):
            continue
        if spans and member.header_offset - spans[-1][1] < PIECE // 4:
            spans[-1][1] = end
        else:
            spans.append([member.header_offset, end])
    size = remote.seek(0, os.SEEK_END)
    for start, end in [*spans, [wheel.start_dir, size]]:
        remote.seek(start)
        local.seek(start)
        local.write(remote.read(end - start))


def wanted(name: str) -> bool:
    """Whether a member of the wheel is needed here."""
    return name.endswith(".py") or name == RECORD


def unpack(wheel: zipfile.ZipFile, root: Path) -> int:
    """Write the wanted members below `root`, each checked against the wheel's list; the list comes last.

    Raises:
        Mismatch: the list or a member is another one.
    """
    record = wheel.read(RECORD)
    if hashlib.sha256(record).hexdigest() != RECORD_SHA256:
        raise Mismatch(f"{RECORD} is not the pinned one")
    sums = {row[0]: row[1] for row in csv.reader(record.decode().splitlines())}
    names = sorted(
        (n for n in sums if wanted(n) and n != RECORD), key=lambda n: wheel.getinfo(n).header_offset
    )
    for name in names:
        data = wheel.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if sums[name] != f"sha256={digest}":
            raise Mismatch(f"{name} is not what the wheel's list says")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / RECORD).parent.mkdir(parents=True, exist_ok=True)
    (root / RECORD).write_bytes(record)
    return len(names)


def fetch(root: Path) -> None:
    """Make `root` the tree, unless it is there; several processes may ask at once.

    Raises:
        Unreachable, Mismatch: see above; `root` stays absent.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / f".{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete(root):
            return
        for stale in root.parent.glob(f".{root.name}.*/"):  # of a fetch that was killed; the lock is ours
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}.") as folder:
            try:
                with opened(locate()) as wheel:
                    count = unpack(wheel, Path(folder) / "tree")
            except OSError as error:  # pip's network errors are of this kind
                raise Unreachable(str(error)) from error
            if root.exists():
                shutil.rmtree(root)
            os.rename(Path(folder) / "tree", root)
        print(f"{count} files in {root}")


def main() -> int:
    """Fetch, and say in one line what went wrong."""
    try:
        fetch(target())
    except Unreachable as error:
        print(f"fetch: vLLM {VERSION} could not be fetched: {error}", file=sys.stderr)
        return 6
    except Mismatch as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())

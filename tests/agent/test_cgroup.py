"""The rank's own control group: against a tree of files, and against the kernel where a group can be made."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkloom.agent.cgroup import RankGroup
from sparkloom.ranks import procs

# A process that hides: another session, another parent, no mark in its environment.
HIDING = """
import os, subprocess, sys
null = subprocess.DEVNULL
subprocess.Popen(["/bin/sleep", "600"], env={}, start_new_session=True, stdin=null, stdout=null, stderr=null)
print(os.getpid(), flush=True)
os._exit(0)
"""


def proc_tree(folder: Path, own: str) -> Path:
    (folder / "self").mkdir(parents=True, exist_ok=True)
    (folder / "self/cgroup").write_text(f"1:name=systemd:/x\n0::{own}\n")
    return folder


def test_a_group_is_made_where_one_was_delegated(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path / "proc", "/system.slice/sparkloom-agent.service")
    own = tmp_path / "fs/system.slice/sparkloom-agent.service"
    own.mkdir(parents=True)
    group = RankGroup.make("rank-3", 42, fs=tmp_path / "fs", proc=proc)
    assert group.path == own / "rank-3"
    assert (group.path / "cgroup.procs").read_text() == "42"
    group.kill()
    assert (group.path / "cgroup.kill").read_text() == "1"


def test_without_delegation_it_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    fs = tmp_path / "fs"
    fs.mkdir()
    root = RankGroup.make("rank-3", 42, fs=fs, proc=proc_tree(tmp_path / "root", "/"))
    assert root.path is None
    assert "root group" in root.text
    none = RankGroup.make("rank-3", 42, fs=fs, proc=tmp_path / "absent")
    assert "no cgroup v2" in none.text
    missing = RankGroup.make("rank-3", 42, fs=fs, proc=proc_tree(tmp_path / "proc", "/gone.service"))
    assert missing.path is None
    assert "not delegated: No such file" in missing.text
    for group in (root, none, missing):  # harmless on a group that is none
        group.kill()
        group.remove()
    assert list(fs.iterdir()) == []


@pytest.fixture
def delegated(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A real control group of this test's own, as if a service manager had delegated it: mount and procfs."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    mount = next((Path(m[1]) for m in mounts if m[2] == "cgroup2"), None)
    if mount is None:
        pytest.skip("no cgroup v2 is mounted here")
    own = mount / f"sparkloom-test-{secrets.token_hex(4)}"
    try:
        own.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    if not (own / "cgroup.kill").exists():
        own.rmdir()
        pytest.skip("this kernel knows no cgroup.kill")
    yield mount, proc_tree(tmp_path / "proc", "/" + own.name)
    for _ in range(100):
        with contextlib.suppress(OSError):
            own.rmdir()
        if not own.exists():
            break
        time.sleep(0.05)


def test_the_kernel_kills_what_hides_from_us(delegated: tuple[Path, Path]) -> None:
    mount, proc = delegated
    script = f"import sys; sys.stdin.readline()\n{HIDING}"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    group = RankGroup.make("rank-7", child.pid, fs=mount, proc=proc)
    assert group.path is not None, group.text
    child.communicate("go\n", timeout=60)  # by now the child is gone and its own child is an orphan
    hidden = [int(pid) for pid in (group.path / "cgroup.procs").read_text().split()]
    assert len(hidden) == 1
    assert b"SPARKLOOM" not in Path(f"/proc/{hidden[0]}/environ").read_bytes()
    group.kill()
    group.remove()
    assert not group.path.exists()
    now = procs.read(hidden[0])
    assert now is None or now.state in "ZX"  # whoever adopted it may take a while to notice

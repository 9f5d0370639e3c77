"""A rank whose agent and keeper are gone is found again: by its mark, or by its session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkloom.agent import orphans
from sparkloom.ranks import Deadlines, Node, Rank, procs

# A leader of a session that starts a process without any mark and ends.
LEADER = """
import subprocess, sys
null = subprocess.DEVNULL
child = subprocess.Popen(["/bin/sleep", "600"], env={}, stdin=null, stdout=null, stderr=null)
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[tuple[procs.Proc, int]]:
    """The recorded leader, dead by now, and the pid of its living child."""
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    found = procs.read(leader.pid)
    assert found is not None
    orphans.record(tmp_path, found, "boot-1")
    leader.communicate(b"end\n", timeout=60)
    yield found, child
    os.kill(child, signal.SIGKILL)


def pids(folder: Path, mark: str = "NO=mark", boot_id: str = "boot-1") -> set[int]:
    return {p.pid for p in orphans.find(folder, mark, boot_id)}


def test_the_session_finds_what_lost_its_mark(tmp_path: Path, lost: tuple[procs.Proc, int]) -> None:
    assert pids(tmp_path) == {lost[1]}


def test_after_a_reboot_the_number_means_nothing(tmp_path: Path, lost: tuple[procs.Proc, int]) -> None:
    assert pids(tmp_path, boot_id="boot-2") == set()


def test_a_number_that_another_process_has_means_nothing(tmp_path: Path) -> None:
    me = procs.read(os.getpid())
    assert me is not None
    orphans.record(tmp_path, replace(me, start=me.start - 1), "boot-1")
    assert pids(tmp_path) == set()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "start": 1}', '{"pid": 1}'])
def test_a_broken_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / orphans.FILE).write_text(text)
    assert pids(tmp_path) == set()
    orphans.forget(tmp_path)
    assert not (tmp_path / orphans.FILE).exists()
    assert pids(tmp_path) == set()


def test_a_process_that_renames_itself_keeps_its_mark(tmp_path: Path) -> None:
    """vLLM's processes do: the new name must not be written over the environment that /proc shows."""
    pytest.importorskip("setproctitle", reason="setproctitle is not installed")
    code = (
        "import os, setproctitle, time\n"
        "os.fork() or setproctitle.setproctitle('VLLM::EngineCore' + 'x' * 400)\n"
        "setproctitle.setproctitle('VLLM::Main')\n"
        "print('renamed', flush=True)\n"
        "time.sleep(600)\n"
    )
    rank = Rank(
        "rank",
        Node("n", "127.0.0.1", ""),
        [sys.executable, "-c", code],
        {**os.environ, "SPARKLOOM_AGENT_RANK": "c/renamed"},
        tmp_path / "rank.log",
        tmp_path,
        Deadlines(0.1, 0.1),
    )
    try:
        while (tmp_path / "rank.log").read_text().count("renamed") < 2:
            assert rank.alive()
        tree = {p.pid for p in rank.processes()}
        assert len(tree) == 2
        marked = pids(tmp_path, "SPARKLOOM_AGENT_RANK=c/renamed")
        assert tree <= marked
    finally:
        rank.stop()
    assert pids(tmp_path, "SPARKLOOM_AGENT_RANK=c/renamed") == set()

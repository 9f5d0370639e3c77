"""Stacks on the expiry of a deadline (P22): py-spy where it is installed, what the kernel tells elsewhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkloom.agent import stacks

HANGING = """
import time
def waits_for_a_dead_peer():
    print("hangs", flush=True)
    time.sleep(600)
waits_for_a_dead_peer()
"""


@pytest.fixture
def hanging() -> Iterator[int]:
    """A Python process that hangs in a function with a telling name."""
    child = subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"hangs\n"
    yield child.pid
    child.kill()
    child.wait()
    child.stdout.close()


def dumped(pid: int, out: Path, spy: str | None) -> str:
    asyncio.run(stacks.dump([pid], "weights took 1800 s", out, spy=spy))
    return out.read_text()


def stand_in(folder: Path, script: str) -> str:
    path = folder / "py-spy"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def test_without_py_spy_the_kernel_s_view_is_kept(tmp_path: Path, hanging: int) -> None:
    text = dumped(hanging, tmp_path / "deep/stacks.txt", None)
    assert text.startswith("why: weights took 1800 s\npy-spy is not installed")
    assert f"=== process {hanging}: {sys.executable} -c" in text
    assert "wchan: " in text
    assert f"thread {hanging} " in text


def test_py_spy_is_asked_without_stopping_the_process(tmp_path: Path, hanging: int) -> None:
    text = dumped(hanging, tmp_path / "stacks.txt", stand_in(tmp_path, 'echo "asked: $*"\n'))
    assert f"asked: dump --nonblocking --pid {hanging}" in text
    assert "not installed" not in text


def test_a_py_spy_that_hangs_is_given_up(
    tmp_path: Path, hanging: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "EACH_S", 0.3)
    begin = time.monotonic()
    text = dumped(hanging, tmp_path / "stacks.txt", stand_in(tmp_path, "exec sleep 600\n"))
    assert "py-spy gave no answer" in text
    assert "wchan: " in text
    assert time.monotonic() - begin < 60.0


def test_a_py_spy_that_cannot_run_and_a_process_that_is_gone_are_no_errors(tmp_path: Path) -> None:
    text = dumped(2**22 + 1, tmp_path / "stacks.txt", str(tmp_path / "absent"))
    assert "cannot be run" in text
    assert "(cannot be read)" in text


def test_a_full_disk_is_no_error_either(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    asyncio.run(stacks.dump([os.getpid()], "x", tmp_path / "file/stacks.txt", spy=None))


def test_the_real_py_spy_names_the_function(tmp_path: Path, hanging: int) -> None:
    spy = stacks.find()
    if spy is None:
        pytest.skip("py-spy is not installed: the stand-in alone was asked")
    text = dumped(hanging, tmp_path / "stacks.txt", spy)
    if "Permission" in text or "ptrace" in text:
        pytest.skip("this machine forbids py-spy to read another process")
    assert "waits_for_a_dead_peer" in text, text


def test_it_is_found_beside_the_interpreter_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, path = tmp_path / "venv", tmp_path / "path"
    for folder in (beside, path):
        folder.mkdir()
        stand_in(folder, "")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    assert stacks.find() == str(beside / "py-spy")
    (beside / "py-spy").unlink()
    assert stacks.find() == str(path / "py-spy")
    (path / "py-spy").unlink()
    assert stacks.find() is None

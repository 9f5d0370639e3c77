"""Two real agents with stub ranks: one quick day in light tests, every case in the heavy ones."""

from __future__ import annotations

import json
import tarfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.cli.main import run
from sparkloom.testing.chaos import CASES, World, run_cases

Make = Callable[..., World]


def told(capsys: pytest.CaptureFixture[str], world: World, *args: str) -> tuple[int, dict]:
    """Exit code and JSON of a command against the head's agent."""
    capsys.readouterr()
    code = run([*args, "--socket", str(world.socket("head")), "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_day_of_a_pair(world: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Ready by checked answers, commands, a dead worker, evidence, an orderly verified stop."""
    w = world(nodes="loopback")
    first = w.ready()
    assert first["generation"] == 1
    assert {r["level"] for r in first["probe"]} <= {"ok", "warn", "skip"}
    assert told(capsys, w, "status")[0] == 0

    # A dead worker takes the head down too; both come back together as a new generation.
    assert w.signal_rank("worker")
    second = w.ready(after=1)
    assert second["restarts"] == {"rank_exit": 1}
    phases = [h["phase"] for h in second["history"]]
    assert phases[-6:] == ["cooling", "gate", "launching", "loading", "warming", "ready"]

    code, logs = told(capsys, w, "logs", "--generation", "1")
    assert code == 0
    assert any("Application startup complete" in line for line in logs["head"]["lines"])
    assert logs["worker"]["generation"] == 1

    out = tmp_path / "evidence.tar.gz"
    code, classes = told(capsys, w, "bundle", str(out))
    assert code == 0
    assert set(classes["classes"]) == {"head", "worker"}
    with tarfile.open(out) as archive:
        names = archive.getnames()
        everything = b"".join(archive.extractfile(n).read() for n in names)  # type: ignore[union-attr]
    assert "worker/generation-2/rank.log" in names
    assert w.key.encode() not in everything

    page = f"http://127.0.0.1:{w.ports['worker']}"
    with urllib.request.urlopen(page + "/metrics") as answer:
        metrics = answer.read().decode()
    assert 'sparkloom_rank_alive{node="head"} 1.0' in metrics
    assert 'sparkloom_restarts_total{cause="rank_exit"} 1.0' in metrics
    with urllib.request.urlopen(page + "/ready") as answer:
        assert answer.status == 200

    for name in ("head", "worker"):
        record = json.loads((w.folder / name / "state/rank-boot.json").read_text())
        assert record["boot_id"] == (w.tree(name) / "proc/sys/kernel/random/boot_id").read_text().strip()

    # P32: both ranks are gone, and yet the stop is no success while a node's memory is away.
    w.memory("worker", 20 << 30)
    code, error = told(capsys, w, "stop", "--wait", "60")
    assert code == 7
    assert "worker: memory has not come back" in error["error"]["detail"]
    w.memory("worker", 64 << 30)
    code, view = told(capsys, w, "stop", "--wait", "60")
    assert code == 0
    assert view["phase"] == "down"
    assert not w.rank_processes()
    assert not list(w.folder.glob("*/state/rank-boot.json"))
    assert told(capsys, w, "status")[0] == 3


@pytest.mark.heavy
def test_a_worker_alone_waits_and_says_for_whom(world: Make, capsys: pytest.CaptureFixture[str]) -> None:
    w = world(nodes="loopback")
    w.ready()
    # Orders on a worker go to the head, and the command waits for what comes of them, not for what was.
    at_worker = ["--socket", str(w.socket("worker"))]
    assert run(["drain", *at_worker, "--wait", "60"]) == 0
    assert w.status()["phase"] == "down"
    assert run(["start", *at_worker, "--wait", "60"]) == 0
    assert w.status()["ready"]
    away = w.model / "away.json"
    (w.model / "config.json").rename(away)
    assert run(["restart", *at_worker, "--wait", "60"]) == 7  # the start limit ends it
    away.rename(w.model / "config.json")
    assert run(["start", *at_worker, "--wait", "60"]) == 0
    assert run(["status", *at_worker]) == 0
    capsys.readouterr()
    w.stop_agent("head")
    assert run(["logs", *at_worker]) == 0
    told_by_worker = capsys.readouterr().out
    assert "head | (the head does not answer" in told_by_worker
    assert "worker | INFO stub" in told_by_worker
    assert run(["bundle", str(w.folder / "alone.tar.gz"), *at_worker]) == 0
    with tarfile.open(w.folder / "alone.tar.gz") as archive:
        assert any(name.startswith("worker/") for name in archive.getnames())
    assert run(["stop", "--socket", str(w.socket("worker")), "--wait", "5"]) in (3, 5, 7)
    assert "head" in capsys.readouterr().err
    deadline = time.monotonic() + 20
    while w.rank_processes("worker") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not w.rank_processes("worker")


@pytest.mark.heavy
def test_every_case_with_stub_ranks(world: Make) -> None:
    """D5: no case may need a human, leave an orphan or serve a wrong answer; CI runs them all."""
    w = world()
    cases = [c for c in CASES if w.network.mode == "netns" or not c.netns]
    outcomes = run_cases(w, cases)
    bad = [f"{o.case}: {o.verdict}" for o in outcomes if o.verdict != "ok"]
    assert not bad, "\n".join(bad) + "\n" + w.tails(30)
    assert len(outcomes) == len(cases)
    # P22: a load past its deadline left the stacks of both nodes.
    assert {p.relative_to(w.folder).parts[0] for p in w.folder.rglob("stacks-*.txt")} == {"head", "worker"}

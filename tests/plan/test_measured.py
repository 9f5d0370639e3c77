"""The plan beside the ranks' logs: only the smallest rank counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.cli.main import run
from sparkloom.cluster import Cluster
from sparkloom.errors import Exit
from sparkloom.logs.phases import of_text
from sparkloom.plan import free, plan
from sparkloom.plan.measured import rows, smallest

GIB = 1 << 30
HEAD = """INFO Model loading took 81.25 GiB memory and 290.1 seconds
INFO Available KV cache memory: 18.20 GiB
INFO GPU KV cache size: 1,550,000 tokens
INFO Graph capturing finished in 31 secs, took 0.90 GiB
"""
WORKER = "\x1b[36m(Worker_TP1)\x1b[0;0m INFO Available KV cache memory: 14.75 GiB\n"


def test_only_the_smallest_rank_counts() -> None:
    logs = {"head": of_text(HEAD), "worker": of_text(WORKER)}
    assert smallest(logs) == ("worker", round(14.75 * GIB))
    assert smallest({"head": of_text("nothing")}) is None


def test_rows(make: Callable[..., Cluster], meminfo: Path) -> None:
    idle = free.read(meminfo / "idle-headless.txt")
    decided = plan(make(), {"head": idle, "worker": idle})
    found = {(row.node, row.what): row for row in rows(decided, {"head": of_text(HEAD)})}
    assert set(found) == {("head", "weights"), ("head", "CUDA graphs"), ("head", "KV pool")}
    weights = found["head", "weights"]
    assert weights.measured_bytes == pytest.approx(81.25 * GIB)
    assert weights.planned_bytes == pytest.approx(weights.measured_bytes, rel=0.02)


def test_command(
    make: Callable[..., Cluster], tmp_path: Path, meminfo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, head, worker = tmp_path / "cluster.json", tmp_path / "head.log", tmp_path / "worker.log"
    file.write_text(make().model_dump_json(exclude_unset=True))
    head.write_text(HEAD)
    worker.write_text(WORKER)
    args = ["plan", str(file), "--rank-log", f"head={head}", "--rank-log", f"worker={worker}"]
    assert run([*args, "--format", "json"]) == Exit.OK
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["smallest_kv"] == {"node": "worker", "bytes": round(14.75 * GIB)}
    assert run(args) == Exit.OK
    assert "the KV pool of worker binds: 14.75 GiB" in capsys.readouterr().out
    assert run(["plan", str(file), "--rank-log", f"head={tmp_path}/absent"]) == Exit.INPUT

"""`sparkloom doctor`: the order, the verdict and the next step."""

from __future__ import annotations

import hashlib
import json

import pytest
from fixtures import tiny_checkpoint
from fixtures.spark_tree import good_spark, meminfo, put

from sparkloom.cli.main import run
from sparkloom.weights.manifest import FileEntry, make_manifest, save_manifest
from sparkloom.weights.places import Place
from sparkloom.weights.verify import verify

REVISION = "1" * 40
PATH = "var/lib/sparkloom/models/glm-5.3-flash-exl3"


@pytest.fixture
def spark(tmp_path):
    """A tree of a good Spark with small weights on it, complete and verified."""
    root = good_spark().write(tmp_path / "tree")
    content = tiny_checkpoint.files()
    folder = tiny_checkpoint.write(root / PATH, content)
    files = [FileEntry(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in content.items()]
    manifest = make_manifest("acme/tiny", REVISION, files)
    save_manifest(folder / "sparkloom-manifest.json", manifest)
    verify(Place(folder), manifest)
    return root


@pytest.fixture
def cluster(tmp_path, pair):
    path = tmp_path / "cluster.json"
    pair |= {"model": {"repo": "acme/tiny", "revision": REVISION}, "drafter": {"kind": "none"}}
    pair["api"] = {"key_file": "/etc/sparkloom/api.key"}
    path.write_text(json.dumps(pair))
    return path


def doctor(capsys, cluster, root, *args):
    code = run(["doctor", str(cluster), "--node", "head", "--root", str(root), "--format", "json", *args])
    return code, json.loads(capsys.readouterr().out)


def levels(out):
    return {step["step"]: step["level"] for step in out["steps"]}


def test_a_ready_node(capsys, cluster, spark):
    code, out = doctor(capsys, cluster, spark, "--strict")
    assert (code, out["verdict"], out["next_step"]) == (0, "ready", "sparkloom start"), out
    assert list(levels(out)) == ["validate", "plan", "fabric", "preflight", "weights"]
    assert set(levels(out).values()) == {"ok"}


def test_a_wrong_cluster_file_ends_it(capsys, tmp_path, spark):
    path = tmp_path / "bad.json"
    path.write_text('{"nodes": []}')
    code, out = doctor(capsys, path, spark)
    assert code == 3
    assert levels(out) == {
        "validate": "fail",
        "plan": "skipped",
        "fabric": "skipped",
        "preflight": "skipped",
        "weights": "skipped",
    }
    assert "validate" in out["next_step"]


def test_the_first_failure_is_the_next_step(capsys, cluster, spark):
    put(spark, "commands/nccl-version.txt", "2.28.9")
    (spark / PATH / "config.json").unlink()
    code, out = doctor(capsys, cluster, spark)
    assert code == 3
    assert out["verdict"] == "not ready"
    assert levels(out)["preflight"] == levels(out)["weights"] == "fail"
    assert out["next_step"].startswith("install NCCL")
    put(spark, "commands/nccl-version.txt", "2.30.7")
    assert doctor(capsys, cluster, spark)[1]["next_step"] == f"sparkloom weights fetch {cluster}"


def test_a_small_node_is_refused_with_both_sums_and_the_largest_processes(capsys, cluster, spark):
    put(spark, "proc/meminfo", meminfo(free=60, available=61))
    put(spark, "proc/9/status", "Name:\tollama\nVmRSS:\t 31457280 kB")
    code, out = doctor(capsys, cluster, spark)
    assert code == 3
    refusal = next(f for s in out["steps"] for f in s["findings"] if f["check"] == "memory")
    assert "are needed" in refusal["summary"]
    assert "are free" in refusal["summary"]
    assert "ollama" in refusal["detail"]
    assert refusal["mend"]


def test_warnings_do_not_keep_a_node_from_being_ready(capsys, cluster, spark):
    put(spark, "proc/sys/vm/swappiness", "60")
    code, out = doctor(capsys, cluster, spark)
    assert (code, out["verdict"]) == (0, "ready with warnings")
    assert out["next_step"] == "start it, or first: set vm.swappiness=0 (swap)"
    assert doctor(capsys, cluster, spark, "--strict")[0] == 1


def test_text_ends_with_verdict_and_next_step(capsys, cluster, spark):
    assert run(["doctor", str(cluster), "--node", "head", "--root", str(spark)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["verdict: ready", "next step: sparkloom start"]
    assert run(["doctor", str(cluster), "--node", "nobody", "--root", str(spark)]) == 2

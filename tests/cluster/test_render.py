"""Rendering: exact flags and environment of each rank."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from rank_pairs import DFLASH, HEAD_RAILS, PAIR, WORKER_RAILS, both, check_parity, flag, rail

from sparkloom.cli.main import run
from sparkloom.cluster import digest, parse
from sparkloom.cluster.render import render
from sparkloom.errors import Exit, SparkloomError
from sparkloom.fabric import Rail

# ------------------------------------------------------------------ exact values


def test_dflash2_flags() -> None:
    head, _ = both({**PAIR, "drafter": DFLASH, "api": {"key_file": "/etc/sparkloom/api.key"}})
    config = json.loads(flag(head, "--speculative-config") or "")
    assert config["method"] == "dflash"
    assert config["num_speculative_tokens"] == 7
    assert config["kv_cache_dtype"] == "auto"
    assert "attention_backend" not in config
    assert flag(head, "--kv-cache-dtype") == "fp8"
    assert flag(head, "--tensor-parallel-size") == "2"
    assert flag(head, "--nnodes") == "2"
    assert flag(head, "--distributed-executor-backend") == "mp"
    assert flag(head, "--master-addr") == "192.168.100.1"
    assert flag(head, "--tool-call-parser") == "glm47"
    assert flag(head, "--reasoning-parser") == "glm45"
    assert json.loads(flag(head, "--kernel-config") or "") == {"enable_flashinfer_autotune": False}
    assert head.env["VLLM_PLUGINS"] == "exl3"
    assert head.env["NCCL_NET"] == "IB"
    assert head.secret_files == {"VLLM_API_KEY": "/etc/sparkloom/api.key"}
    assert head.argv[:4] == (
        "python",
        "-m",
        "sparkloom.vllm.serve",
        "/var/lib/sparkloom/models/glm-5.3-flash-exl3",
    )


@pytest.mark.parametrize(
    ("profile", "present"),
    [
        ("interactive", {"--limit-mm-per-prompt", "--speculative-config", "--long-prefill-token-threshold"}),
        ("long-context", {"--limit-mm-per-prompt", "--speculative-config"}),
        ("agents", {"--limit-mm-per-prompt", "--speculative-config", "--long-prefill-token-threshold"}),
        ("no-drafter", {"--limit-mm-per-prompt", "--long-prefill-token-threshold"}),
        ("text-only", {"--language-model-only", "--speculative-config", "--long-prefill-token-threshold"}),
    ],
)
def test_profiles(profile: str, present: set[str]) -> None:
    head, worker = both({**PAIR, "profile": profile})
    flags = {word for word in head.argv if word.startswith("--")}
    watched = {
        "--limit-mm-per-prompt",
        "--speculative-config",
        "--long-prefill-token-threshold",
        "--language-model-only",
    }
    assert flags & watched == present
    check_parity(head, worker)


def test_profiles_state_the_newcomers_share() -> None:
    """A newcomer's prefill shares steps in `interactive`, and takes them whole in `long-context`."""
    interactive, _ = both({**PAIR, "profile": "interactive"})
    long, _ = both({**PAIR, "profile": "long-context"})
    assert json.loads(interactive.env["SPARKLOOM_PATCHES"])["fair_prefill"] == "fair"
    assert json.loads(long.env["SPARKLOOM_PATCHES"])["fair_prefill"] == "stock"
    assert flag(interactive, "--long-prefill-token-threshold") == "2304"
    assert flag(long, "--long-prefill-token-threshold") is None


def test_a_value_by_hand_beats_the_profile() -> None:
    head, _ = both(
        {**PAIR, "profile": "text-only", "serving": {"max_sequences": 3}, "vision": {"enabled": True}}
    )
    assert flag(head, "--max-num-seqs") == "3"
    assert flag(head, "--language-model-only") is None


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_nodes(count: int) -> None:
    nodes = [
        {"name": f"n{i}", "role": "worker" if i else "head", "fabric": {"addresses": [f"10.0.0.{i + 1}"]}}
        for i in range(count)
    ]
    cluster = parse({"nodes": nodes})
    rendered = [render(cluster, f"n{i}") for i in range(count)]
    assert len({r.digest for r in rendered}) == 1
    assert [flag(r, "--node-rank") for r in rendered] == (
        [None] if count == 1 else [str(i) for i in range(count)]
    )
    assert all(flag(r, "--tensor-parallel-size") == str(count) for r in rendered)
    for other in rendered[1:]:
        check_parity(rendered[0], other)


def test_generation_moves_the_master_port() -> None:
    cluster = parse({**PAIR, "rendezvous": {"generation_ports": 4}})
    ports = [flag(render(cluster, "head", generation=g), "--master-port") for g in range(5)]
    assert ports == ["29501", "29502", "29503", "29504", "29501"]


# ------------------------------------------------------------------ fabric


def test_gid_and_devices_come_from_the_node() -> None:
    cluster = parse(PAIR)
    head = render(cluster, "head", rails=HEAD_RAILS)
    worker = render(cluster, "worker", rails=WORKER_RAILS)
    assert (head.env["NCCL_IB_GID_INDEX"], worker.env["NCCL_IB_GID_INDEX"]) == ("3", "5")
    assert head.env["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert worker.env["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert head.env["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0"
    assert head.digest == worker.digest == render(cluster, "head").digest
    assert not head.unresolved


def test_without_a_fabric_nothing_is_guessed() -> None:
    head = render(parse(PAIR), "head")
    assert set(head.unresolved) == {
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
    }
    assert not set(head.unresolved) & set(head.env)


def test_devices_with_different_indexes() -> None:
    """NCCL has one index for all devices: it is left out and NCCL chooses per device."""
    rails = [HEAD_RAILS[0], rail("192.168.101.1", "roceP2p1s0f0", "enP2p1s0f0np0", 4)]
    head = render(parse(PAIR), "head", rails=rails)
    assert "NCCL_IB_GID_INDEX" not in head.env
    assert "NCCL_IB_GID_INDEX" not in head.unresolved
    assert head.env["NCCL_IB_ROCE_VERSION_NUM"] == "2"


@pytest.mark.parametrize(
    "rails",
    [
        [HEAD_RAILS[0]],
        [HEAD_RAILS[0], rail("192.168.101.1", "roceP2p1s0f0", "x", None)],
        WORKER_RAILS,
        [],
    ],
    ids=["one rail missing", "no GID", "other node's", "none"],
)
def test_rails_that_contradict_the_file(rails: list[Rail]) -> None:
    with pytest.raises(SparkloomError) as caught:
        render(parse(PAIR), "head", rails=rails)
    assert (caught.value.field or "").startswith("nodes[0].fabric.addresses")
    assert caught.value.mend


def test_a_device_in_the_file_must_be_the_address_own() -> None:
    document = copy.deepcopy(PAIR)
    document["nodes"][0]["fabric"]["rdma_devices"] = ["rocep1s0f1", "roceP2p1s0f1"]
    with pytest.raises(SparkloomError) as caught:
        render(parse(document), "head", rails=HEAD_RAILS)
    assert caught.value.field == "nodes[0].fabric.rdma_devices[0]"


# ------------------------------------------------------------------ CPU platform

CPU: dict[str, Any] = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["127.0.0.1"]}},
        {"name": "worker", "role": "worker", "agent_port": 8780, "status_port": 8781},
    ],
    "model": {"path": "/tmp/demo", "geometry": "checkpoint", "served_name": "demo"},
    "serving": {"tool_parser": "", "reasoning_parser": ""},
    "engine": {"platform": "cpu", "dtype": "float32", "cache_directory": "/tmp/cache"},
}
CPU["nodes"][1]["fabric"] = {"addresses": ["127.0.0.2"]}


def test_cpu_pair_needs_no_gpu_words() -> None:
    head, worker = both(CPU)
    check_parity(head, worker)
    assert not [name for name in head.env if name.startswith(("NCCL", "CUDA", "TRITON"))]
    assert head.env["GLOO_SOCKET_IFNAME"] == "lo"
    assert head.env["VLLM_HOST_IP"] == "127.0.0.1"
    assert not head.unresolved
    assert flag(head, "--dtype") == "float32"
    assert "--enforce-eager" in head.argv
    assert "--no-enable-prefix-caching" in head.argv
    assert flag(head, "--kv-cache-memory-bytes") == str(256 << 20)
    for gone in ("--kv-cache-dtype", "--kernel-config", "--gpu-memory-utilization", "--language-model-only"):
        assert gone not in head.argv


def test_cpu_in_namespaces_takes_interfaces() -> None:
    document = copy.deepcopy(CPU)
    for i, node in enumerate(document["nodes"]):
        node["fabric"] = {"addresses": [f"10.77.0.{i + 1}"]}
    cluster = parse(document)
    assert render(cluster, "head").unresolved
    assert render(cluster, "head", interfaces=["vethA"]).env["GLOO_SOCKET_IFNAME"] == "vethA"


# ------------------------------------------------------------------ command


def test_command_render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, report, key = tmp_path / "cluster.json", tmp_path / "fabric.json", tmp_path / "api.key"
    key.write_text("sk-very-secret\n")
    file.write_text(json.dumps({**PAIR, "api": {"key_file": str(key)}}))
    report.write_text(json.dumps({"rails": [r.as_dict() for r in HEAD_RAILS], "findings": []}))
    args = ["render", str(file), "--node", "head", "--fabric", f"head={report}"]
    assert run([*args, "--format", "json"]) == Exit.OK
    out = capsys.readouterr().out
    document = json.loads(out)
    assert document["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert document["env"]["SPARKLOOM_CLUSTER_DIGEST"] == digest(parse(json.loads(file.read_text())))
    assert run(args) == Exit.OK
    assert "sk-very-secret" not in out + capsys.readouterr().out
    assert run(["render", str(file), "--node", "nobody"]) == Exit.USAGE
    report.write_text("[]")
    assert run(args) == Exit.INPUT


def test_command_render_refuses_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pool pinned above the plan of the smaller node."""
    folder = Path(__file__).parents[1] / "fixtures" / "meminfo"
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({**PAIR, "serving": {"kv_cache_bytes": 14 << 30}}))
    args = ["render", str(file), "--node", "head", "--meminfo", f"head={folder}/idle-headless.txt"]
    assert run([*args, "--meminfo", f"worker={folder}/desktop.txt"]) == Exit.CHECK
    message = capsys.readouterr().err
    assert "worker needs" in message
    assert "leave serving.kv_cache_bytes out" in message

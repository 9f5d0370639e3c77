"""Rendering: both ranks from one file. For every option they differ only in the allowed list."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sparkloom.cli.main import run
from sparkloom.cluster import ClusterError, digest, parse
from sparkloom.cluster.owned import OWNED_ENV, OWNED_FLAGS, normal_flag
from sparkloom.cluster.render import PER_NODE_ENV, PER_NODE_FLAGS, Rendered, render, shared_part
from sparkloom.cluster.schema import walk
from sparkloom.errors import Exit, SparkloomError
from sparkloom.fabric import Rail

PAIR: dict[str, Any] = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1", "192.168.101.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2", "192.168.101.2"]}},
    ]
}
DFLASH = {"kind": "dflash2", "accept_non_commercial_licence": True}


def rail(address: str, rdma: str, netdev: str, index: int | None) -> Rail:
    return Rail(netdev, rdma, address, index, "gid", "RoCE v2", 9000, 4096, True, "200 Gb/sec")


HEAD_RAILS = [
    rail("192.168.100.1", "rocep1s0f0", "enp1s0f0np0", 3),
    rail("192.168.101.1", "roceP2p1s0f0", "enP2p1s0f0np0", 3),
]
WORKER_RAILS = [
    rail("192.168.100.2", "rocep1s0f1", "enp1s0f1np1", 5),
    rail("192.168.101.2", "roceP2p1s0f1", "enP2p1s0f1np1", 5),
]


def flag(rendered: Rendered, name: str) -> str | None:
    """Value of a flag, "" when it has none, None when it is absent."""
    if name not in rendered.argv:
        return None
    i = rendered.argv.index(name) + 1
    value = rendered.argv[i] if i < len(rendered.argv) else "--"
    return "" if value.startswith("--") else value


def both(document: dict[str, Any], **keywords: Any) -> tuple[Rendered, Rendered]:
    cluster = parse(document)
    return render(cluster, "head", **keywords), render(cluster, "worker", **keywords)


def differences(head: Rendered, worker: Rendered) -> set[str]:
    """Names of flags and variables that differ."""

    def flags(argv: tuple[str, ...]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        name = "program"
        for word in argv:
            if word.startswith("--"):
                name = word
            found.setdefault(name, []).append(word)
        return found

    a, b = flags(head.argv), flags(worker.argv)
    names = {name for name in a | b if a.get(name) != b.get(name)}
    return names | {name for name in head.env | worker.env if head.env.get(name) != worker.env.get(name)}


def check_parity(head: Rendered, worker: Rendered) -> None:
    assert differences(head, worker) <= PER_NODE_FLAGS | PER_NODE_ENV
    assert head.digest == worker.digest
    assert list(head.argv).index("--tensor-parallel-size")
    assert "--headless" in worker.argv
    assert "--headless" not in head.argv
    assert "--port" not in worker.argv
    assert not worker.secret_files


# ------------------------------------------------------------------ every option

PLAIN: dict[str, list[Any]] = {
    "name": ["other"],
    "profile": ["long-context", "agents", "no-drafter", "text-only"],
    "fabric.prefix_length": [16],
    "fabric.mtu": [4200],
    "fabric.require_rdma": [False],
    "fabric.nccl_debug": ["WARN"],
    "fabric.nccl_channels": [4],
    "fabric.nccl_buffer_bytes": [1 << 20],
    "fabric.nccl_cross_nic": [False],
    "fabric.minimum_nccl": ["2.30.7"],
    "model.repo": ["a/b"],
    "model.revision": ["0" * 40],
    "model.fallback_repo": ["a/b"],
    "model.path": ["/models/x"],
    "model.manifest": ["/models/m.json"],
    "model.served_name": ["glm"],
    "model.quantization": ["none"],
    "model.chat_template": ["/etc/template.jinja"],
    "drafter.kind": ["mtp", "none"],
    "drafter.repo": ["a/b"],
    "drafter.revision": ["0" * 40],
    "drafter.path": ["/models/d"],
    "drafter.tokens": [1, 3],
    "drafter.accept_non_commercial_licence": [True],
    "drafter.probabilistic": [False],
    "serving.kv_cache_dtype": ["fp8_e4m3"],
    "serving.kv_cache_bytes": [8 << 30],
    "serving.prefix_caching": [False],
    "serving.prefix_cache_retention_tokens": [4352],
    "serving.cuda_graphs": [False],
    "serving.cuda_graph_sizes": [[1, 3, 12]],
    "serving.long_prefill_tokens": [0, 1000],
    "serving.default_effort": ["low", "max"],
    "serving.loader": ["eager", "instanttensor"],
    "serving.tool_parser": [""],
    "serving.reasoning_parser": [""],
    "serving.attention_workspace_factor": [4],
    "serving.indexer_topk_backend": ["torch"],
    "serving.kda_prefill_backend": ["triton"],
    "serving.exl3_backend": ["cuda"],
    "vision.enabled": [False],
    "vision.max_videos": [1],
    "api.host": ["127.0.0.2"],
    "api.key_file": ["/etc/sparkloom/api.key"],
    "api.allowed_origins": [["https://chat.example.org"]],
    "agent.key_file": ["/run/key"],
    "agent.socket": ["/run/s"],
    "agent.state_directory": ["/srv/s"],
    "patches.draft_kv_block_tokens": [None],
    "patches.fair_prefill": ["stock"],
    "patches.spin_window_ms": [2.5],
    "probe.checks": ["quick"],
    "rendezvous.rpc_port_base": [29700],
    "rendezvous.master_port": [29600],
    "serving.max_sequences": [2],
    "serving.max_queued_requests": [8],
    "serving.max_batched_tokens": [9000],
    "serving.context_tokens": [65_536],
    "vision.processor_cache_bytes": [0],
    "vision.max_images": [2],
    "vision.max_image_tokens": [1024],
    "agent.port": [8790],
    "memory.activation_reserve_bytes": [1 << 30],
    "patches.default_new_tokens": [100],
    "engine.dtype": ["bfloat16"],
    "engine.image": ["x@sha256:" + "0" * 64],
    "engine.command": [["/bin/vllm", "serve"]],
    "engine.cuda_home": ["/usr/local/cuda"],
    "engine.cache_directory": ["/srv/cache"],
    "engine.omp_threads": [8],
    "engine.attention_backend": ["FLASHINFER_MLA_SPARSE_SM120"],
    "engine.extra_args": [["--stream-interval", "2"]],
    "engine.extra_env": [{"VLLM_LOGGING_LEVEL": "DEBUG"}],
}
FIXED = {"schema_version", "model.geometry", "engine.platform", "engine.runtime", "engine.moe_backend"}
FIXED |= {"drafter.kv_cache_dtype", "drafter.attention_backend", "api.exposure"}


def values(path: str) -> list[Any]:
    """Other good values of the field at `path`."""
    if path in PLAIN:
        return PLAIN[path]
    field = dict(walk())[path]
    default = field.get_default(call_default_factory=True)
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, (int, float)):
        return [default + 1 if isinstance(default, int) else default * 0.9]
    return []


OPTIONS = [path for path, _ in walk() if not path.startswith("nodes[].") and path not in FIXED]


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    section, _, name = path.rpartition(".")
    if section:
        document.setdefault(section, {})[name] = value
    else:
        document[name] = value
    return document


@pytest.mark.parametrize("path", OPTIONS)
def test_every_option_reaches_both_ranks(path: str) -> None:
    chosen = values(path)
    assert chosen, f"give another value of {path} in PLAIN"
    for value in chosen:
        check_parity(*both(put(copy.deepcopy(PAIR), path, value)))


@given(
    st.dictionaries(st.sampled_from(sorted(PLAIN)), st.integers(0, 3), max_size=8),
    st.integers(0, 1),
    st.booleans(),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
def test_combinations_reach_both_ranks(choice: dict[str, int], rails: int, dflash: bool) -> None:
    document = copy.deepcopy(PAIR)
    if dflash:
        document["drafter"] = dict(DFLASH)
    for path, index in choice.items():
        put(document, path, PLAIN[path][index % len(PLAIN[path])])
    try:
        cluster = parse(document)
    except ClusterError:
        return  # a forbidden combination: refused before anything is rendered
    head = render(cluster, "head", rails=HEAD_RAILS if rails else None)
    worker = render(cluster, "worker", rails=WORKER_RAILS if rails else None)
    check_parity(head, worker)
    assert shared_part(head.argv, head.env) == shared_part(worker.argv, worker.env)


def test_everything_that_is_written_is_owned() -> None:
    """Extra flags and variables cannot override what the cluster file decides."""
    documents = [PAIR, {**PAIR, "drafter": DFLASH}, {**PAIR, "profile": "text-only"}]
    for path, chosen in PLAIN.items():
        if not path.startswith("engine.extra"):
            documents.extend(put(copy.deepcopy(PAIR), path, value) for value in chosen)
    for document in documents:
        cluster = parse(document)
        for node, rails in (("head", HEAD_RAILS), ("worker", WORKER_RAILS)):
            rendered = render(cluster, node, rails=rails)
            flags = {normal_flag(word) for word in rendered.argv if word.startswith("--")}
            assert flags <= set(OWNED_FLAGS), flags - set(OWNED_FLAGS)
            assert set(rendered.env) <= set(OWNED_ENV), set(rendered.env) - set(OWNED_ENV)


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

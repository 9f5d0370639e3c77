"""Parity of the ranks: for every option, head and worker differ only in the allowed list."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rank_pairs import DFLASH, HEAD_RAILS, PAIR, WORKER_RAILS, both, check_parity

from sparkloom.cluster import ClusterError, parse
from sparkloom.cluster.owned import OWNED_ENV, OWNED_FLAGS, normal_flag
from sparkloom.cluster.render import render, shared_part
from sparkloom.cluster.schema import walk

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
    "ablit.donor_repo": ["a/b"],
    "ablit.donor_revision": ["0" * 40],
    "ablit.tensor": ["layers.{layer}.weight"],
    "ablit.donor_tensor": ["layers.{layer}.weight"],
    "ablit.path": ["/srv/ablit"],
    "ablit.manifest_sha256": ["0" * 64],
    "api.host": ["127.0.0.2"],
    "api.key_file": ["/etc/sparkloom/api.key"],
    "api.allowed_origins": [["https://chat.example.org"]],
    "agent.key_file": ["/run/key"],
    "agent.socket": ["/run/s"],
    "agent.state_directory": ["/srv/s"],
    "patches.draft_kv_block_tokens": [None],
    "patches.fair_prefill": ["stock"],
    "patches.keep_prefix_share": [0.25],
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
FIXED |= {"ablit.method"}  # never alone: with its companions in EDITED
EDITED = {
    "method": "projection",
    "accept_behaviour_change": True,
    "donor_repo": "a/b",
    "donor_revision": "0" * 40,
    "manifest_sha256": "0" * 64,
}
FIXED |= {"serving.chunked_prefill", "drafter.kv_cache_dtype", "drafter.attention_backend", "api.exposure"}


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


def test_weight_edit_reaches_both_ranks() -> None:
    head, worker = both({**copy.deepcopy(PAIR), "ablit": EDITED})
    check_parity(head, worker)
    assert head.env["SPARKLOOM_ABLIT"] == worker.env["SPARKLOOM_ABLIT"]


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
    documents.append({**PAIR, "ablit": EDITED})
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

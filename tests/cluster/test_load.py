"""Loading a cluster file: every problem at once, each with field, value and mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkloom.cli.main import run
from sparkloom.cluster import ClusterError, digest, load, loads, parse, settings
from sparkloom.errors import Exit, SparkloomError


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set `a.b` or `a[0].b` in a document."""
    *parents, name = path.replace("[", ".[").split(".")
    node: Any = document
    for part in parents:
        node = node[int(part[1:-1])] if part.startswith("[") else node.setdefault(part, {})
    node[int(name[1:-1]) if name.startswith("[") else name] = value
    return document


def problems(document: Any) -> dict[str, Any]:
    with pytest.raises(ClusterError) as caught:
        parse(document, file="cluster.json")
    assert caught.value.code == Exit.INPUT
    for problem in caught.value.problems:
        assert problem.problem, problem
        assert problem.mend, problem
    return {p.field: p for p in caught.value.problems}


def test_smallest_file(pair: dict[str, Any]) -> None:
    cluster = parse(pair)
    assert [n.name for n in cluster.ranks] == ["head", "worker"]
    assert cluster.world == 2


def test_head_is_rank_0_wherever_it_stands(pair: dict[str, Any]) -> None:
    pair["nodes"].reverse()
    assert [n.name for n in parse(pair).ranks] == ["head", "worker"]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_nodes(count: int) -> None:
    nodes = [
        {
            "name": f"n{i}",
            "role": "worker" if i else "head",
            "fabric": {"addresses": [f"10.0.0.{i + 1}"]},
        }
        for i in range(count)
    ]
    assert parse({"nodes": nodes}).world == count


RULES = [
    ("nodes[1].role", "head", "nodes[1].role"),
    ("nodes[0].role", "worker", "nodes"),
    ("nodes[1].name", "head", "nodes[0].name"),
    ("nodes[1].fabric.addresses", ["192.168.100.2"], "nodes[1].fabric.addresses"),
    ("nodes[1].fabric.addresses[1]", "192.168.100.2", "nodes[1].fabric.addresses[1]"),
    ("nodes[1].fabric.addresses[1]", "192.168.102.2", "nodes[1].fabric.addresses[1]"),
    ("nodes[1].fabric.addresses[0]", "127.0.0.1", "nodes[1].fabric.addresses[0]"),
    ("nodes[1].fabric.addresses[0]", "0.0.0.0", "nodes[1].fabric.addresses[0]"),
    ("nodes[1].fabric.rdma_devices", ["rocep1s0f0"], "nodes[1].fabric.rdma_devices"),
    ("api.port", 29501, "rendezvous.master_port"),
    ("agent.port", 8888, "api.port"),
    ("nodes[0].agent_port", 8771, "agent.status_port"),
    ("drafter.kind", "dflash2", "drafter.accept_non_commercial_licence"),
    ("api.host", "0.0.0.0", "api.host"),
    ("api.host", "0.0.0.0", "api.key_file"),
    ("api.key_file", "/nix/store/abc/key", "api.key_file"),
    ("agent.heartbeat_seconds", 10, "agent.heartbeat_seconds"),
    ("engine.runtime", "oci", "engine.image"),
    ("engine.image", "vllm/vllm-openai:latest", "engine.image"),
    ("model.revision", "main", "model.revision"),
    ("engine.moe_backend", "marlin", "engine.moe_backend"),
    ("serving.kv_cache_dtype", "bfloat16", "serving.kv_cache_dtype"),
    ("serving.kv_cache_dtype", "nvfp4_ds_mla", "serving.kv_cache_dtype"),
    ("serving", {"max_batched_tokens": 256, "long_prefill_tokens": 512}, "serving.long_prefill_tokens"),
    ("serving", {"max_batched_tokens": 64, "max_sequences": 64}, "serving.max_batched_tokens"),
    ("serving.chunked_prefill", False, "serving.chunked_prefill"),
    ("patches.default_new_tokens", 1_000_000, "patches.default_new_tokens"),
    ("serving.prefix_cache_retention_tokens", 5000, "serving.prefix_cache_retention_tokens"),
    ("vision.max_images", 500, "vision.max_images"),
    ("patches.draft_kv_block_tokens", 2304, "patches.draft_kv_block_tokens"),
    ("engine.extra_args", ["--max-model-len", "5"], "engine.extra_args[0]"),
    ("engine.extra_args", ["--max_model_len=5"], "engine.extra_args[0]"),
    ("engine.extra_args", ["--no-enable-prefix-caching"], "engine.extra_args[0]"),
    ("engine.extra_args", ["--kernel-config.enable_flashinfer_autotune=true"], "engine.extra_args[0]"),
    ("engine.extra_args", ["--api-key", "sk-1"], "engine.extra_args[0]"),
    ("engine.extra_args", ["--max-model", "5"], "engine.extra_args[0]"),
    ("engine.extra_args", ["--header", "sk-abcdefgh12345"], "engine.extra_args[1]"),
    ("engine.extra_env", {"HTTPS_PROXY": "http://me:word@proxy"}, "engine.extra_env.HTTPS_PROXY"),
    ("engine.extra_env", {"NCCL_IB_GID_INDEX": "3"}, "engine.extra_env.NCCL_IB_GID_INDEX"),
    ("engine.extra_env", {"HF_TOKEN": "hf_1"}, "engine.extra_env.HF_TOKEN"),
]


@pytest.mark.parametrize(("path", "value", "field"), RULES, ids=[f"{p}={v}" for p, v, _ in RULES])
def test_rules(pair: dict[str, Any], path: str, value: Any, field: str) -> None:
    assert field in problems(put(pair, path, value))


DFLASH = {"kind": "dflash2", "accept_non_commercial_licence": True}


@pytest.mark.parametrize(
    ("key", "value"),
    [("kv_cache_dtype", "fp8"), ("attention_backend", "TRITON_ATTN"), ("tokens", 8)],
)
def test_dflash2_traps_are_refused(pair: dict[str, Any], key: str, value: Any) -> None:
    assert f"drafter.{key}" in problems({**pair, "drafter": {**DFLASH, key: value}})


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"drafter": {"kind": "none"}, "patches": {"adaptive_verify_width": True}}, "adaptive_verify_width"),
        (
            {"drafter": {"kind": "mtp", "tokens": 1}, "patches": {"adaptive_verify_width": True}},
            "adaptive_verify_width",
        ),
        (
            {"serving": {"prefix_caching": False}, "patches": {"keep_prefix_share": 0.2}},
            "keep_prefix_share",
        ),
    ],
)
def test_options_without_what_they_work_on_are_refused(
    pair: dict[str, Any], more: dict[str, Any], field: str
) -> None:
    assert f"patches.{field}" in problems({**pair, **more})


def test_dflash2_with_accepted_licence(pair: dict[str, Any]) -> None:
    parse({**pair, "drafter": DFLASH, "patches": {"draft_kv_block_tokens": 2304}})


def test_all_problems_at_once(pair: dict[str, Any]) -> None:
    put(pair, "nodes[0].fabric.addresses[0]", "head.local")
    put(pair, "serving.context_token", 5)
    put(pair, "serving.max_sequences", "4")
    put(pair, "api.port", 70000)
    found = problems(pair)
    assert set(found) == {
        "nodes[0].fabric.addresses[0]",
        "serving.context_token",
        "serving.max_sequences",
        "api.port",
    }
    assert "'context_tokens'" in found["serving.context_token"].mend
    assert found["api.port"].value == 70000


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.extra_env", {"OPENAI_API_KEY": "word-1234"}),
        ("engine.extra_env", {"OPENAI_API_KEY": ["word-1234"]}),
        ("engine.extra_args", ["--api-key=word-1234"]),
        ("api.key", "sk-word-1234-abcd"),
        ("api.api_key", "word-1234"),
    ],
)
def test_secret_is_not_repeated_in_the_error(pair: dict[str, Any], path: str, value: Any) -> None:
    assert "word-1234" not in repr(problems(put(pair, path, value)))


def test_harmless_flags_are_no_secrets(pair: dict[str, Any]) -> None:
    harmless = ["--return-tokens-as-token-ids", "--stream-interval", "2", "--seed=7"]
    parse(put(pair, "engine.extra_args", harmless))


def test_a_smaller_context_lowers_what_the_file_does_not_say(pair: dict[str, Any]) -> None:
    final = settings(parse(put(pair, "serving.context_tokens", 8192)))
    assert final.default_new_tokens == 4096
    assert final.max_images == 3
    assert final.long_prefill_tokens <= final.max_batched_tokens
    assert settings(parse(put(pair, "vision.enabled", False))).max_images == 0


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", "{'a': 1}", '{"nodes": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\ufeff"],
)
def test_not_a_document(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(SparkloomError) as caught:
        load(path)
    assert caught.value.code == Exit.INPUT
    assert str(path) in str(caught.value)
    assert "mend:" in str(caught.value)


def test_binary_and_absent_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe\x00")
    for wrong in (path, tmp_path / "absent", tmp_path):
        with pytest.raises(SparkloomError) as caught:
            load(wrong)
        assert caught.value.code == Exit.INPUT


def test_digest_is_of_the_content(pair: dict[str, Any]) -> None:
    first = digest(parse(pair))
    spaced = loads(json.dumps({"schema_version": 1, **pair}, indent=8))
    assert digest(spaced) == first
    assert digest(parse(put(pair, "serving.max_sequences", 3))) != first


def test_command_validate(tmp_path: Path, pair: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(pair))
    assert run(["validate", str(path), "--format", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["valid"] is True
    path.write_text(json.dumps(put(pair, "api.host", "0.0.0.0")))
    assert run(["validate", str(path), "--format", "json"]) == Exit.INPUT
    error = json.loads(capsys.readouterr().out)["error"]
    assert {p["field"] for p in error["problems"]} == {"api.host", "api.key_file"}
    assert error["file"] == str(path)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({}, "cluster.api"),
        ({"fabric": {"mtu": 1500}}, "cluster.fabric.mtu"),
        ({"fabric": {"require_rdma": False}}, "cluster.fabric.require_rdma"),
        ({"memory": {"drop_page_cache": False}}, "cluster.memory"),
        ({"deadlines": {"stop_seconds": 20}}, "cluster.deadlines.stop_seconds"),
        ({"patches": {"free_indexer_logits": True}}, "cluster.patches.free_indexer_logits"),
        ({"drafter": DFLASH, "serving": {"cuda_graphs": False}}, "cluster.drafter"),
    ],
)
def test_warnings(
    tmp_path: Path,
    pair: dict[str, Any],
    change: dict[str, Any],
    check: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**pair, **change}))
    assert run(["validate", str(path), "--format", "json"]) == Exit.OK
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert check in {finding["check"] for finding in findings}
    assert all(finding["mend"] for finding in findings)
    assert run(["validate", str(path), "--strict"]) == Exit.WARN


def test_the_example_has_no_warnings() -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "cluster.json"
    assert run(["validate", str(example), "--strict"]) == Exit.OK

"""The pre-load validator: what vLLM would load silently is refused by name."""

from __future__ import annotations

import json

import pytest
from fixtures import tiny_checkpoint
from fixtures.tiny_checkpoint import CONFIG, matrix, pack, shards, write

from sparkloom.exl3 import MARKERS
from sparkloom.exl3.checkpoint import INDEX
from sparkloom.findings import Level
from sparkloom.weights.checkpoint import check_checkpoint, shard_problem

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
GATE = "model.layers.0.mlp.experts.0.gate_proj"


def check(tmp_path, tables=None, config=None, world=2, quantization="exl3", extra=None):
    content = tiny_checkpoint.files(tables, config) | (extra or {})
    folder = write(tmp_path / "w", {k: v for k, v in content.items() if v is not None})
    return check_checkpoint(folder, world=world, quantization=quantization)


def failures(findings):
    return {f.check: f"{f.summary}\n{f.detail}" for f in findings if f.level is Level.fail}


def test_a_good_checkpoint(tmp_path):
    (found,) = check(tmp_path)
    assert found.level is Level.ok
    assert "12 EXL3 matrices" in found.summary


@pytest.mark.parametrize("part", ["trellis", "suh", "svh"])
def test_one_missing_tensor(tmp_path, part):
    tables = shards()
    del tables[A][f"{GATE}.{part}"]
    found = failures(check(tmp_path, tables))
    assert f"{GATE}: the tensor .{part} is missing" in found["checkpoint.exl3"]


def test_a_missing_mark_and_a_foreign_mark(tmp_path):
    tables = shards()
    del tables[A][f"{GATE}.mcg"]
    found = failures(check(tmp_path / "a", tables))
    assert "declares codebook 'mcg', tensors have 3inst" in found["checkpoint.codebook"]
    assert GATE in found["checkpoint.codebook"]
    silent = {**CONFIG, "quantization_config": {"quant_method": "exl3"}}
    found = failures(check(tmp_path / "d", tables, silent))
    assert "mixes codebooks: 3inst (1), mcg (11)" in found["checkpoint.codebook"]
    tables[A][f"{GATE}.mul1"] = ("I32", [])
    found = failures(check(tmp_path / "b", tables))
    assert "tensors have mul1" in found["checkpoint.codebook"]
    tables[A][f"{GATE}.mcg"] = ("I32", [])
    assert "both markers" in failures(check(tmp_path / "c", tables))["checkpoint.exl3"]


def test_a_wrong_codebook_in_the_config(tmp_path):
    config = {**CONFIG, "quantization_config": {**CONFIG["quantization_config"], "codebook": "mul1"}}
    assert "declares codebook 'mul1'" in failures(check(tmp_path, config=config))["checkpoint.codebook"]


def test_wrong_bits_in_the_config(tmp_path):
    config = {**CONFIG, "quantization_config": {**CONFIG["quantization_config"], "bits": 3}}
    assert "declares 3 bits" in failures(check(tmp_path, config=config))["checkpoint.bits"]


@pytest.mark.parametrize(
    ("tensor", "entry", "words"),
    [
        ("trellis", ("F16", [8, 16, 64]), "must be int16"),
        ("trellis", ("I16", [8, 16, 60]), "fits no rate"),
        ("trellis", ("I16", [8, 16]), "16 x bits"),
        ("trellis", ("I16", [6, 16, 64]), "no multiple of 128"),
        ("suh", ("F16", [64]), "must be F16 [128]"),
        ("svh", ("F32", [256]), "must be F16 [256]"),
        ("mcg", ("F16", []), "int32 scalar"),
        ("mcg", ("I32", [2]), "int32 scalar"),
    ],
)
def test_wrong_shapes_and_types(tmp_path, tensor, entry, words):
    tables = shards()
    tables[A][f"{GATE}.{tensor}"] = entry
    assert words in failures(check(tmp_path, tables))["checkpoint.exl3"]


def test_tensor_parallel_sizes(tmp_path):
    assert not failures(check(tmp_path / "a", world=2))
    found = failures(check(tmp_path / "b", world=3))["checkpoint.split"]
    assert "output size 256 over 3" in found
    assert "input size 256 over 3" in found  # down_proj is split by rows
    assert not failures(check(tmp_path / "c", world=1))


def test_a_missing_expert_and_a_missing_matrix(tmp_path):
    tables = shards()
    tables[A] = {k: v for k, v in tables[A].items() if ".experts.1." not in k}
    tables[B] = {k: v for k, v in tables[B].items() if "layers.1.mlp.experts.0.up_proj" not in k}
    found = failures(check(tmp_path, tables))["checkpoint.experts"]
    assert "model.layers.0.mlp.experts: no expert 1 of 2" in found
    assert "model.layers.1.mlp.experts.0: no up_proj" in found


def test_the_index_must_list_every_file_and_tensor(tmp_path):
    content = tiny_checkpoint.files()
    index = json.loads(content[INDEX])
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v != B}
    found = failures(check(tmp_path / "a", extra={INDEX: json.dumps(index).encode()}))
    assert "the index omits 1 files" in found["checkpoint.index"]
    assert B in found["checkpoint.index"]
    index = json.loads(content[INDEX])
    del index["weight_map"][f"{GATE}.svh"]
    found = failures(check(tmp_path / "b", extra={INDEX: json.dumps(index).encode()}))
    assert f"{GATE}.svh" in found["checkpoint.index"]
    index["weight_map"]["ghost.weight"] = A
    found = failures(check(tmp_path / "c", extra={INDEX: json.dumps(index).encode()}))
    assert "ghost.weight" in found["checkpoint.index"]


def test_a_shard_that_the_index_names_is_missing_or_cut(tmp_path):
    assert B in failures(check(tmp_path / "a", extra={B: None}))["checkpoint.shards"]
    cut = tiny_checkpoint.files()[B][:-5]
    assert "cut short" in failures(check(tmp_path / "b", extra={B: cut}))["checkpoint.shards"]
    assert "too long" in failures(check(tmp_path / "c", extra={B: cut + b"x" * 50}))["checkpoint.shards"]


def test_a_stale_shard_with_the_same_tensors(tmp_path):
    stale = pack(matrix(GATE, 128, 256))
    found = failures(check(tmp_path, extra={"model-00001-of-00009.safetensors": stale}))
    assert GATE in found["checkpoint.twice"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": []}, "declares quant_method None, the cluster file wants exl3"),
        ({"quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "'fp8'"),
    ],
)
def test_a_missing_or_wrong_declaration(tmp_path, config, words):
    assert words in failures(check(tmp_path, config=config))["checkpoint.method"]


def test_declarations_against_content(tmp_path):
    assert "hold EXL3" in failures(check(tmp_path / "a", config={}, quantization="none"))["checkpoint.method"]
    plain = {A: {"model.embed.weight": ("BF16", [8, 8])}}
    assert "no file holds" in failures(check(tmp_path / "b", plain))["checkpoint.method"]
    assert not failures(check(tmp_path / "c", plain, config={}, quantization="none"))
    nested = {"text_config": CONFIG}
    assert not failures(check(tmp_path / "d", config=nested))


def test_a_single_file_needs_no_index(tmp_path):
    folder = write(
        tmp_path, {"model.safetensors": pack(shards()[A]), "config.json": json.dumps(CONFIG).encode()}
    )
    (found,) = check_checkpoint(folder)
    assert found.level is Level.ok


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize(
    "data", [None, b"{", b"[]", b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": "../x"}}']
)
def test_unreadable_json_is_one_finding(tmp_path, name, data):
    if name == "config.json" and data and data.startswith(b'{"w'):
        data = b"\xff"
    (found,) = check(tmp_path, extra={name: data})
    assert found.level is Level.fail
    assert name in found.detail + found.summary


def test_a_wrong_marker_value(tmp_path):
    content = tiny_checkpoint.files()
    right = MARKERS["mcg"].to_bytes(4, "little")
    assert right in content[A]
    wrong = content[A].replace(right, b"\0\0\0\0", 1)
    assert ".mcg: must be" in failures(check(tmp_path, extra={A: wrong}))["checkpoint.exl3"]


def raw_file(path, value, data=b""):
    header = value if isinstance(value, bytes) else json.dumps(value).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize(
    ("entry", "data", "words"),
    [
        ({"dtype": "I9", "shape": [], "data_offsets": [0, 0]}, b"", "unknown tensor type (t)"),
        ({"dtype": "I8", "shape": [-1], "data_offsets": [0, 1]}, b"1", "not what the format asks for"),
        ({"dtype": "I8", "shape": [1], "data_offsets": [1]}, b"1", "not what the format asks for"),
        ({"dtype": "I8", "shape": [2], "data_offsets": [0, 1]}, b"1", "has 1 bytes"),
        ({"dtype": "I8", "shape": [1], "data_offsets": [5, 6]}, b"123456", "leave a gap at t"),
        ({"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}, b"", "cut short"),
        ({"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}, b"123", "2 bytes too long"),
        (3, b"", "not what the format asks for"),
    ],
)
def test_wrong_files_are_named(tmp_path, entry, data, words):
    assert words in shard_problem(raw_file(tmp_path / "x.safetensors", {"t": entry}, data))


def test_a_file_that_is_no_safetensors(tmp_path):
    path = tmp_path / "x.safetensors"
    for data in (b"", b"1234567", b"\xff" * 8, b"\x10" + b"\0" * 7 + b"{}"):
        path.write_bytes(data)
        assert shard_problem(path)
    assert shard_problem(tmp_path / "absent")
    assert shard_problem(raw_file(path, b"[" * 100_000))


def test_what_the_reference_library_writes_is_right(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    import numpy as np

    tensors = {"b": np.zeros((2, 3), np.float16), "a": np.array(5, np.int32), "c": np.zeros((0, 4), np.int16)}
    safetensors.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    assert shard_problem(tmp_path / "x.safetensors") is None

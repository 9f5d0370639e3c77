"""Which layers are EXL3: read from headers, every fault named with its tensor."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from sparkloom.errors import SparkloomError
from sparkloom.vllm import checkpoint

Tensors = dict[str, tuple[str, tuple[int, ...]]]
WIDTH = {"I16": 2, "F16": 2, "I32": 4, "BF16": 2, "F32": 4}


def matrix(name: str, k: int, n: int, bits: float = 4, mark: str | None = "mcg") -> Tensors:
    """The tensors of one EXL3 matrix."""
    found: Tensors = {
        f"{name}.trellis": ("I16", (k // 16, n // 16, round(16 * bits))),
        f"{name}.suh": ("F16", (k,)),
        f"{name}.svh": ("F16", (n,)),
    }
    if mark:
        found[f"{name}.{mark}"] = ("I32", ())
    return found


def layer(n: int, names: tuple[str, str, str], experts: int = 2, **kw: Any) -> Tensors:
    """The experts of one MoE layer, hidden 256, intermediate 128."""
    found: Tensors = {}
    for e in range(experts):
        for name, (k, out) in zip(names, ((256, 128), (256, 128), (128, 256)), strict=True):
            found |= matrix(f"model.layers.{n}.mlp.experts.{e}.{name}", k, out, **kw)
    return found


GLM = ("gate_proj", "up_proj", "down_proj")
PROJECTIONS = [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")]


def write(path: Path, tensors: Tensors) -> None:
    """A safetensors file with these headers and zero data."""
    table, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = WIDTH[dtype]
        for extent in shape:
            size *= extent
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(at))


def inventory(tensors: Tensors) -> checkpoint.Inventory:
    return checkpoint.inventory(tensors, {}, "test")


@pytest.mark.parametrize("names", [GLM, ("w1", "w3", "w2")])
def test_experts_by_both_namings(names: tuple[str, str, str]) -> None:
    found = inventory(layer(3, names, bits=3)).experts(
        "language_model.model.layers.3.mlp.experts", PROJECTIONS
    )
    assert found is not None
    assert [(m.bits, m.codebook, m.k, m.n, m.experts) for m in found] == [
        (3, "mcg", 256, 128, 2),
        (3, "mcg", 256, 128, 2),
        (3, "mcg", 128, 256, 2),
    ]


def test_some_layers_exl3_the_rest_native() -> None:
    tensors = layer(0, GLM)
    tensors["model.layers.1.mlp.experts.0.gate_proj.weight"] = ("BF16", (128, 256))
    found = inventory(tensors)
    assert found.experts("model.layers.0.mlp.experts", PROJECTIONS) is not None
    assert found.experts("model.layers.1.mlp.experts", PROJECTIONS) is None
    assert found.experts("model.layers.10.mlp.experts", PROJECTIONS) is None


def test_names_of_wrapped_and_mtp_layers_meet() -> None:
    found = inventory(
        matrix("model.language_model.layers.45.mlp.shared_experts.down_proj", 128, 256)
        | matrix("lm_head", 128, 128)
    )
    assert found.find("model.layers.45.mtp_block.mlp.shared_experts.down_proj") is not None
    assert found.find("language_model.lm_head") is not None
    assert found.find("model.layers.4.mlp.shared_experts.down_proj") is None
    assert found.find("visual.layers.45.mlp.shared_experts.down_proj") is None
    assert found.find("vision_tower.encoder.layers.45.mlp.shared_experts.down_proj") is None


@pytest.mark.parametrize(
    ("bits", "mark", "codebook"), [(1.5, "mul1", "mul1"), (8, None, "3inst"), (1, "mcg", "mcg")]
)
def test_rates_and_codebooks(bits: float, mark: str | None, codebook: str) -> None:
    module = inventory(matrix("a", 128, 256, bits, mark)).modules["a"]
    assert (module.bits, module.codebook, module.k, module.n) == (bits, codebook, 128, 256)


def broken(change: Tensors, drop: tuple[str, ...] = ()) -> Tensors:
    tensors = layer(0, GLM) | change
    return {name: entry for name, entry in tensors.items() if name not in drop}


X = "model.layers.0.mlp.experts.1.up_proj"


@pytest.mark.parametrize(
    ("tensors", "field", "says"),
    [
        (broken({f"{X}.trellis": ("I16", (16, 8, 144))}), f"{X}.trellis", "9 bits per weight does not exist"),
        (broken({f"{X}.trellis": ("I16", (16, 8, 65))}), f"{X}.trellis", "does not exist"),
        (broken({f"{X}.trellis": ("I16", (16, 8, 40))}), f"{X}.trellis", "with codebook mul1 only"),
        (broken({f"{X}.trellis": ("F16", (16, 8, 64))}), f"{X}.trellis", "not int16"),
        (broken({f"{X}.trellis": ("I16", (15, 8, 64))}), f"{X}.trellis", "240 input features"),
        (broken({f"{X}.trellis": ("I16", (16, 8, 48))}), f"{X}.trellis", "experts of one layer disagree"),
        (broken({f"{X}.suh": ("F16", (128,))}), f"{X}.suh", "not float16 [256]"),
        (broken({f"{X}.svh": ("F32", (128,))}), f"{X}.svh", "not float16 [128]"),
        (broken({}, (f"{X}.suh",)), f"{X}.suh", "missing"),
        (broken({f"{X}.su": ("I16", (16,))}, (f"{X}.suh",)), f"{X}.suh", "old encoder"),
        (broken({}, (f"{X}.trellis",)), f"{X}.suh", "without its trellis"),
        (broken({f"{X}.mul1": ("I32", ())}), f"{X}.mul1", "two codebook markers"),
        (broken({}, (f"{X}.mcg",)), f"{X}.trellis", "experts of one layer disagree"),
        (broken({f"{X}.mcg": ("I32", (2,))}), f"{X}.mcg", "not an int32 scalar"),
        (broken({f"{X}.weight": ("BF16", (128, 256))}), f"{X}.weight", "is native where"),
    ],
)
def test_every_fault_names_its_tensor(tensors: Tensors, field: str, says: str) -> None:
    with pytest.raises(SparkloomError) as error:
        inventory(tensors)
    assert error.value.field == field
    assert says in error.value.summary
    assert error.value.mend


def test_half_encoded_layer() -> None:
    tensors = {name: entry for name, entry in layer(0, GLM).items() if ".down_proj." not in name}
    with pytest.raises(SparkloomError, match="these are not: down_proj"):
        inventory(tensors).experts("model.layers.0.mlp.experts", PROJECTIONS)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"quant_method": "exl2"}, "quant_method"),
        ({}, "quant_method"),
        ({"quant_method": "exl3", "bits": 9}, "bits"),
        ({"quant_method": "exl3", "bits": 0}, "bits"),
        ({"quant_method": "exl3", "bits": "four"}, "bits"),
        ({"quant_method": "exl3", "bits": True}, "bits"),
        ({"quant_method": "exl3", "bits": 4, "codebook": "mcg2"}, "codebook"),
    ],
)
def test_wrong_config_keys(config: dict[str, Any], field: str) -> None:
    with pytest.raises(SparkloomError) as error:
        checkpoint.check_config(config)
    assert error.value.field == field
    assert error.value.mend


def test_declared_when_no_file_is_here() -> None:
    found = checkpoint.declared({"quant_method": "exl3", "bits": 4.05, "codebook": "mul1"})
    experts = found.experts("model.layers.7.mlp.experts", PROJECTIONS)
    assert experts is not None
    assert [(m.bits, m.codebook) for m in experts] == [(4.05, "mul1")] * 3
    assert found.find("model.layers.7.mlp.shared_experts.up_proj") is None


def save(folder: Path) -> list[Path]:
    """A checkpoint of two shards with an index."""
    shards = {
        "model-00001-of-00002.safetensors": layer(0, GLM),
        "model-00002-of-00002.safetensors": layer(1, GLM),
    }
    for name, tensors in shards.items():
        write(folder / name, tensors)
    index = {"weight_map": {tensor: name for name, tensors in shards.items() for tensor in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return [folder / name for name in shards]


def test_shards_by_index_and_small_pickle(tmp_path: Path) -> None:
    save(tmp_path)
    write(tmp_path / "consolidated.safetensors", {"not.in.the.index": ("F32", (1,))})
    found = checkpoint.read(tmp_path)
    assert len(found.modules) == 6
    assert len(pickle.dumps(found)) < 4000
    assert pickle.loads(pickle.dumps(found)).find("model.layers.1.mlp.experts.*.up_proj") is not None


def test_missing_shard(tmp_path: Path) -> None:
    save(tmp_path)[1].unlink()
    with pytest.raises(SparkloomError, match=r"missing: model-00002-of-00002\.safetensors"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_shard(tmp_path: Path, keep: int) -> None:
    shard = save(tmp_path)[0]
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(SparkloomError) as error:
        checkpoint.read(tmp_path)
    assert error.value.file == str(shard)
    assert "fetch" in error.value.mend


@pytest.mark.parametrize("text", ["", "{", "{}", '{"weight_map": 3}'])
def test_damaged_index(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(SparkloomError, match="index is damaged"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("head", [b"[]", b"{}}", b'{"a": {"dtype": "F32"}}', b'{"a": 3}', b"\xff\xfe"])
def test_damaged_header(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    with pytest.raises(SparkloomError) as error:
        checkpoint.read(tmp_path)
    assert error.value.file == str(path)

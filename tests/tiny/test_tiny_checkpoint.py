"""The tiny checkpoint has the real one's names, keys and types, is reproducible, and a sane size."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkloom import exl3
from sparkloom.errors import SparkloomError
from sparkloom.tiny import checkpoint as tiny
from sparkloom.tiny import write
from sparkloom.tiny.shape import Shape
from sparkloom.vllm import checkpoint, survey

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    write(path)
    return path


@pytest.fixture(scope="module")
def headers(folder: Path) -> dict[str, Any]:
    return {
        name: entry for path in checkpoint.files(folder) for name, entry in checkpoint.header(path).items()
    }


def test_names_and_types_of_the_real_checkpoint(headers: dict[str, Any]) -> None:
    root = "model.language_model.layers."
    assert headers[f"{root}1.mlp.experts.7.gate_proj.trellis"] == ("I16", (16, 16, 64))
    assert headers[f"{root}1.mlp.experts.7.down_proj.suh"] == ("F16", (256,))
    assert headers[f"{root}1.mlp.experts.7.up_proj.mcg"] == ("I32", ())
    assert headers[f"{root}0.mlp.gate_proj.weight"] == ("BF16", (512, 256))
    assert headers[f"{root}1.mlp.shared_experts.down_proj.weight"] == ("BF16", (256, 256))
    assert headers[f"{root}1.mlp.gate.e_score_correction_bias"] == ("F32", (8,))
    assert headers[f"{root}0.hc_attn_fn"] == ("F32", (24, 1024))
    assert headers[f"{root}3.self_attn.kv_a_proj_with_mqa.weight"] == ("BF16", (512, 256))
    assert headers[f"{root}3.self_attn.indexer.index_kpool_compress_ape"] == ("BF16", (4, 128))
    assert headers[f"{root}4.eh_proj.weight"] == ("BF16", (256, 512))
    assert headers[f"{root}4.mlp.experts.0.down_proj.trellis"] == ("I16", (16, 16, 64))
    assert headers["lm_head.weight"] == ("BF16", (448, 256))
    assert "model.visual.patch_embed.proj.weight" in headers
    assert not any(".mul1" in name for name in headers)


def test_config_keys(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Glm5NextForConditionalGeneration"]
    assert config["quantization_config"] == {
        "quant_method": "exl3",
        "bits": 4,
        "codebook": "mcg",
        "scope": "glm53_routed_experts_only",
    }
    text = config["text_config"]
    assert text["layer_types"] == ["linear_attention"] * 3 + ["indexed_attention"]
    assert text["num_nextn_predict_layers"] == 1
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 5


def test_it_passes_the_survey_for_a_pair(folder: Path) -> None:
    found = survey.survey(folder, 2)
    assert [(g["layers"], g["matrices"], g["bits"], g["codebook"]) for g in found["groups"]] == [
        (4, 32, 4, "mcg")
    ] * 3
    with pytest.raises(SparkloomError, match="cannot be split over 4 ranks") as error:
        survey.survey(folder, 4)
    assert error.value.mend == "use a tensor-parallel size of 1 or 2"


def test_gate_and_up_share_their_input_scales_and_weights_are_sane() -> None:
    found = dict(tiny.tensors(Shape()))
    stem = "model.language_model.layers.2.mlp.experts.3."
    assert np.array_equal(found[f"{stem}gate_proj.suh"], found[f"{stem}up_proj.suh"])
    assert not np.array_equal(found[f"{stem}gate_proj.trellis"], found[f"{stem}up_proj.trellis"])
    matrix = exl3.Linear(
        found[f"{stem}up_proj.trellis"], found[f"{stem}up_proj.suh"], found[f"{stem}up_proj.svh"], "mcg", None
    )
    assert 0.04 < float(exl3.dense_weight(matrix).std()) < 0.07
    assert all(np.isfinite(tensor).all() for tensor in found.values() if tensor.dtype.kind == "f")


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159], np.float32)  # the second and third are ties
    kind, bits = tiny.stored("x.weight", values)
    assert kind == "BF16"
    assert (bits.astype(np.uint32) << 16).view(np.float32).tolist() == [1.0, 1.0, 1.015625, -3.140625]


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "again")
    for path in sorted(folder.iterdir()):
        other = tmp_path / "again" / path.name
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest(), (
            path.name
        )


def test_chat_template_and_special_tokens(folder: Path) -> None:
    jinja2 = pytest.importorskip("jinja2")
    text = jinja2.Template((folder / "chat_template.jinja").read_text()).render(
        messages=[
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": "hi"},
        ],
        add_generation_prompt=True,
        enable_thinking=False,
    )
    assert text == (
        "[gMASK]<sop><|system|>\nbe kind<|user|>\nhello<|assistant|>\nhi<|assistant|>\n<think></think>"
    )
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name in ("<think>", "</think>", "<tool_call>", "<arg_key>", "<|observation|>"):
        assert len(tokenizer.encode(name).ids) == 1


def test_a_strange_folder_is_left_alone_and_an_old_one_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SparkloomError, match=r"something else: notes\.txt"):
        write(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    again = tmp_path / "model"
    again.mkdir()
    (again / "model-00001-of-00009.safetensors").write_bytes(b"half")
    write(again)
    assert not (again / "model-00001-of-00009.safetensors").exists()
    assert (again / "config.json").is_file()

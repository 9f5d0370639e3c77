"""The rewritten model against its original, both in transformers and float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smol_reference import PROMPTS, decoded, prompt_ids, tensors, transformers_model

from sparkloom.demo import smol, source
from sparkloom.demo.cache import Store, cache_folder
from sparkloom.demo.gguf import GgufModel
from sparkloom.demo.smol import Options

pytestmark = pytest.mark.heavy
TOKENS = 40


def original() -> Any:
    """The GGUF's own model: a Llama in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    gguf = GgufModel(source.find_gguf(Store(cache_folder() / "smol/source")))
    old = gguf.shape()
    config = LlamaConfig(
        vocab_size=old.vocab,
        hidden_size=old.hidden,
        intermediate_size=old.mlp,
        num_hidden_layers=old.layers,
        num_attention_heads=old.heads,
        num_key_value_heads=old.kv_heads,
        head_dim=old.head_dim,
        max_position_embeddings=old.context,
        rms_norm_eps=old.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": old.rope_theta},
        tie_word_embeddings=True,
        eos_token_id=old.eos,
        pad_token_id=old.pad,
    )
    model = LlamaForCausalLM(config).float()
    state = model.state_dict()
    state = {name: torch.from_numpy(gguf(name).copy()) for name in state if name != "lm_head.weight"}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def test_same_function_as_the_original() -> None:
    import torch

    from sparkloom.vllm.sources import teacher

    native = smol.prepare(Options(layers=0), lambda *_: None)
    prompts = prompt_ids(native.folder)[:5]
    old, new = original(), transformers_model(native.folder)
    texts = []
    for ids in prompts:
        with torch.no_grad():
            full = old.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)
            off = (old(full).logits - new(full).logits).abs().max().item()
        assert off < 1e-3
        texts.append(full[0, len(ids) :].tolist())
        assert list(teacher(new, ids, texts[-1]).tokens) == texts[-1]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(native.folder)
    assert "Paris" in tokenizer.decode(texts[PROMPTS.index("What is the capital of France?")])


def test_tokenizer_round_trip() -> None:
    from transformers import AutoTokenizer

    native = smol.prepare(Options(layers=0), lambda *_: None)
    tokenizer = AutoTokenizer.from_pretrained(native.folder)
    for text in ("Hello world 1998, it's", "  two  blanks\n\ttab", "naïve 東京 🙂", "x=1;y=[2,3]"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer("1998").input_ids == [tokenizer(c).input_ids[0] for c in "1998"]
    assert tokenizer.eos_token_id == 2
    assert tokenizer("a<|im_end|>").input_ids[-1] == 2
    assert prompt_ids(native.folder)[0][0] == 1


def test_encoded_experts_keep_the_padding_zero_and_the_rate(tmp_path: Path) -> None:
    made = smol.prepare(Options(layers=1), lambda *_: None)
    native = tensors(smol.prepare(Options(layers=0), lambda *_: None).folder)
    found = tensors(made.folder)
    layer = made.encoded[0]
    for name in ("w1", "w2", "w3"):
        stem = f"model.layers.{layer}.block_sparse_moe.experts.0.{name}"
        assert f"{stem}.weight" not in found
        assert found[f"{stem}.trellis"].shape[2] == 4 * 16
        assert f"{stem}.mcg" in found
        weight, want = decoded(found, stem), native[f"{stem}.weight"]
        pad = weight[576:] if name == "w2" else weight[:, 576:]
        assert not pad.any()
        assert np.square(weight - want).sum() / np.square(want).sum() < 0.006

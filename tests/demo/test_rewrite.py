"""The rewrite computes the original's function, in dimensions that two ranks can share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_llama import SHAPE, llama_config, logits, weights

from sparkloom.demo.rewrite import LlamaShape, plan
from sparkloom.errors import SparkloomError

SMOL = LlamaShape(49152, 576, 30, 9, 3, 64, 1536, 1e-5, 100000.0, 8192, 1, 2, 2)


def test_smol_dimensions() -> None:
    made = plan(SMOL)
    assert (made.hidden, made.heads, made.kv_heads, made.experts, made.expert_width) == (640, 12, 4, 6, 256)
    config = made.config()
    assert config["rms_norm_eps"] == 9e-6
    assert config["num_experts_per_tok"] == config["num_local_experts"] == 6
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
    assert made.norm_scale == pytest.approx(0.948683, abs=1e-6)


def test_rewritten_logits_equal_the_original() -> None:
    old = weights()
    made = plan(SHAPE)
    assert (made.hidden, made.heads, made.kv_heads, made.experts) == (256, 12, 4, 3)
    new = dict(made.shared(old.__getitem__))
    for layer in range(SHAPE.layers):
        new |= {f"{n}.weight": w for n, w in made.experts_of(layer, old.__getitem__)}
    assert all(w.dtype == np.float32 for w in new.values())
    ids = [1, 5, 90, 33, 5, 12, 64, 2, 7, 7, 41, 3]
    want = logits(old, ids, llama_config())
    got = logits(new, ids, made.config())
    assert np.abs(want).max() > 5
    assert np.abs(got - want).max() < 1e-4
    assert (got.argmax(-1) == want.argmax(-1)).all()


def test_padding_stays_zero() -> None:
    old = weights()
    made = plan(SHAPE)
    for name, w in made.experts_of(0, old.__getitem__):
        assert w.shape == (256, 256)
        pad = w[SHAPE.hidden :] if name.endswith("w2") else w[:, SHAPE.hidden :]
        assert not pad.any()


def test_tensor_count_of_smol() -> None:
    made = plan(SMOL)
    # Shared: embeddings, last norm, and for each layer two norms, four projections, one router.
    assert 2 + SMOL.layers * (2 + 4 + 1) + SMOL.layers * made.experts * 3 == 752


@pytest.mark.parametrize(
    ("change", "field"), [({"mlp": 1500}, "intermediate_size"), ({"kv_heads": 2}, "num_attention_heads")]
)
def test_dimensions_that_cannot_be_shared(change: dict[str, int], field: str) -> None:
    with pytest.raises(SparkloomError) as caught:
        plan(replace(SMOL, **change))
    assert caught.value.field == field
    assert caught.value.mend

"""The true checkpoint's headers: names of the tiny one, a split over two and four ranks."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from fixtures import true_geometry

from sparkloom.errors import SparkloomError
from sparkloom.exl3.headers import DTYPE_BITS
from sparkloom.exl3.options import BOOST, matches
from sparkloom.plan.geometry import GLM_FLASH
from sparkloom.tiny import checkpoint as tiny
from sparkloom.tiny.shape import Shape
from sparkloom.vllm import survey


def test_the_generator_makes_the_tiny_checkpoint() -> None:
    stored = {name: (tiny.stored(name, t)[0], t.shape) for name, t in tiny.tensors(Shape())}
    assert true_geometry.table(shape=Shape()) == stored


def test_true_counts() -> None:
    table = true_geometry.table()
    assert len(table) == 149_904
    assert sum(".experts." in name for name in table) == (GLM_FLASH.moe_layers + 1) * GLM_FLASH.experts * 12
    total = sum(math.prod(shape) * DTYPE_BITS[dtype] // 8 for dtype, shape in table.values())
    assert 174e9 < total < 176e9
    native = [name for name in table if ".experts." not in name]
    boost = [name for name in native if matches(name, BOOST)]
    weights = sum(math.prod(table[name][1]) for name in boost)
    assert (len(boost), weights // 256 // 10_000) == (323, 3101)
    assert not any("visual" in name for name in boost)
    assert not matches("model.language_model.layers.3.mlp.experts.7.gate_proj.trellis", BOOST)
    assert all(size % 128 == 0 for name in boost for size in table[name][1])


@pytest.mark.parametrize("dense", ["native", "exl3", "fp8"])
def test_survey(dense: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(true_geometry.true_shape(), experts=2)
    folder = true_geometry.write(tmp_path / "true", true_geometry.table(dense, shape), shape)
    found = survey.survey(folder, 2)
    names = {group["name"].rpartition("language_model.")[2]: group["layers"] for group in found["groups"]}
    assert names["layers.*.mlp.experts.*.down_proj"] == GLM_FLASH.moe_layers + 1
    assert found["needs"] == ([] if dense == "native" else ["patches.dense_quantization"])
    if dense == "native":
        survey.survey(folder, 4)
        with pytest.raises(SparkloomError, match="cannot be split over 3 ranks"):
            survey.survey(folder, 3)
        return
    assert names["layers.*.self_attn.q_proj"] == GLM_FLASH.kda_layers
    assert names["layers.*.self_attn.o_proj"] == GLM_FLASH.layers + 1
    assert names["layers.*.self_attn.kv_a_proj_with_mqa"] == GLM_FLASH.mla_layers + 1
    if dense == "exl3":
        with pytest.raises(SparkloomError, match="lm_head"):
            survey.survey(folder, 4)

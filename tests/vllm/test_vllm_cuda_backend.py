"""The CUDA back end's choice: why it cannot run here, what it refuses. Its results: tests/kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("vllm")
import torch

from sparkloom.vllm import backends
from sparkloom.vllm.backends.base import ExpertsSpec, LinearSpec

EXPERTS = ExpertsSpec(
    layer="layers.3.mlp.experts",
    experts=8,
    hidden=256,
    intermediate=128,
    top_k=2,
    max_tokens=64,
    bits13=4,
    bits2=4,
    codebook="mcg",
    swiglu_limit=10.0,
    dtype=torch.bfloat16,
    shared_suh=True,
)


def test_auto_prefers_it_and_falls_back_on_the_cpu() -> None:
    assert next(iter(backends.BACKENDS)) == "cuda"
    assert backends.select(EXPERTS, torch.device("cpu"), "auto").name == "reference"


def test_it_says_what_it_needs_and_refuses() -> None:
    cuda = backends.load("cuda")
    assert "needs a CUDA device" in (cuda.unavailable(torch.device("cpu")) or "")
    assert cuda.refuses(EXPERTS) is None
    assert "2.5 bits" in (cuda.refuses(replace(EXPERTS, bits2=2.5)) or "")
    assert "multiples of 128" in (cuda.refuses(replace(EXPERTS, intermediate=192)) or "")
    assert "1024 experts" in (cuda.refuses(replace(EXPERTS, experts=1025)) or "")
    linear = LinearSpec("q", 256, (128, 384), (4, 6), ("mcg", "mul1"), 64, torch.float64)
    assert "float64" in (cuda.refuses(linear) or "")
    assert cuda.refuses(replace(linear, dtype=torch.float16)) is None

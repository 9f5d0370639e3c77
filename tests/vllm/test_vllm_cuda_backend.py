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


def test_a_dense_layer_is_one_node_of_a_compiled_graph() -> None:
    """vLLM compiles whole models: a layer's apply must trace without a break and follow the layer's name."""
    from sparkloom.vllm.backends.cuda import CudaLinear, _dense
    from sparkloom.vllm.linear import Exl3LinearMethod

    class Plain(CudaLinear):
        """Without tensors and scratch."""

        def __init__(self, weight: torch.Tensor) -> None:
            self.name, self.width, self.weight = "layers.0.q", weight.shape[1], weight
            _dense[self.name] = self

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    layer, x = torch.nn.Linear(1, 1), torch.randn(2, 5, 4)
    method = Exl3LinearMethod([], "")
    first = Plain(torch.randn(4, 3))
    method.runs = [first.apply]
    call = torch.compile(lambda x: method.apply(layer, x), fullgraph=True, backend="aot_eager")
    assert torch.allclose(call(x), x @ first.weight)
    second = Plain(torch.randn(4, 3))  # the same layer of another engine: graphs find it by name
    assert torch.allclose(call(x), x @ second.weight)

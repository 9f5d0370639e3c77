"""The ExLlamaV3 back end around a stand-in of the package's linear layer (the real one needs a GPU)."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

pytest.importorskip("vllm")
import torch

from sparkloom.vllm import backends
from sparkloom.vllm.backends import reference
from sparkloom.vllm.backends.base import ExpertsSpec, ExpertsTensors

SPEC = ExpertsSpec("layer", 3, 128, 128, 2, 8, 4, 4, "mcg", 2.0, torch.float32, False)


class LinearEXL3:
    """Takes what the package's class takes; multiplies with the dense weight."""

    def __init__(self, config, k, n, *, suh, svh, trellis, out_dtype, mcg=None, mul1=None):  # type: ignore[no-untyped-def]
        assert mcg is not None
        assert mul1 is None
        assert (suh.numel(), svh.numel()) == (k, n)
        h = reference.hadamard(trellis.device).float()
        self.weight = suh.float()[:, None] * (h @ reference.decode(trellis, "mcg") @ h) * svh.float()

    def forward(self, x, params):  # type: ignore[no-untyped-def]
        assert x.dtype == torch.float16
        assert x.is_contiguous()
        return x.float() @ self.weight


def test_experts_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("exllamav3", "exllamav3.modules", "exllamav3.modules.quant", "exllamav3.modules.quant.exl3")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].LinearEXL3 = LinearEXL3  # type: ignore[attr-defined]
    torch.manual_seed(0)
    h = reference.hadamard(torch.device("cpu")).float()
    assert torch.allclose(h @ h, torch.eye(128), atol=1e-5)

    def bits(*lead: int) -> torch.Tensor:
        return torch.randint(-32768, 32768, (*lead, 8, 8, 64), dtype=torch.int16)

    def scale(*shape: int) -> torch.Tensor:
        return (torch.rand(shape) * 0.1 + 0.02).half()

    tensors = ExpertsTensors(
        bits(3, 2), scale(3, 2, 128), scale(3, 2, 128), bits(3), scale(3, 128), scale(3, 128)
    )
    x, ids = torch.randn(8, 128), torch.randint(0, 3, (8, 2))
    x = x.half().float()
    weights = torch.rand(8, 2)
    ours = backends.load("exllamav3")().experts(SPEC, tensors).apply(x, weights, ids)
    other = backends.load("reference")().experts(SPEC, tensors)
    other.prepare()
    want = other.apply(x, weights, ids)
    assert (ours - want).norm() / want.norm() < 2e-3


def test_auto_never_takes_it() -> None:
    assert backends.BACKENDS["exllamav3"][1] is False
    backend = backends.load("exllamav3")
    assert "needs a CUDA device" in (backend.unavailable(torch.device("cpu")) or "")
    assert "multiples of 128" in (backend.refuses(replace(SPEC, hidden=200)) or "")

"""Agreement with ExLlamaV3's own MoE kernels, taken from the user's wheel as a black box.

`SPARKLOOM_EXLLAMAV3_WHEEL` names the wheel; its headers are compiled here (nvcc, half a minute).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sparkloom.kernels import ops

VARIABLE = "SPARKLOOM_EXLLAMAV3_WHEEL"
WHEEL = Path(os.environ.get(VARIABLE, ""))
MISSING = (
    f"{VARIABLE} names no exllamav3 wheel"
    if WHEEL.suffix != ".whl" or not WHEEL.is_file()
    else "nvcc is not on the path"
    if shutil.which("nvcc") is None
    else None
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.heavy,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]


@pytest.fixture(scope="module")
def bench(repo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_bench", repo / "kernels/bench/bench.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel_bench"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def arms(bench: ModuleType) -> tuple[object, object]:
    """The compiled kernels and one layer of GLM-5.3-Flash's size on one of two ranks."""
    major, minor = torch.cuda.get_device_capability()
    torch.manual_seed(20)
    return bench.ExLlama(WHEEL, f"{major}{minor}a"), bench.Layer()


@pytest.mark.parametrize("routing", ["uniform", "pool24", "zipf"])
@pytest.mark.parametrize("tokens", [1, 8, 32, 64, 65, 512])
def test_agrees_with_exllamav3(
    bench: ModuleType, arms: tuple[object, object], tokens: int, routing: str
) -> None:
    other, layer = arms
    ids, weights = bench.routing(tokens, routing)
    weights = weights.half().float()  # theirs takes half
    x = torch.randn(tokens, bench.HIDDEN, device="cuda").half()
    ours = ops.moe(x, layer.experts, weights, ids, out=torch.empty(x.shape, device="cuda")).double()
    for name, call in other.arms([layer], x, ids, weights).items():
        other.out.zero_()
        call(0)
        torch.cuda.synchronize()
        theirs = other.out.double()
        difference = (ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt()
        assert float(difference) <= 2e-3, (name, float(difference))

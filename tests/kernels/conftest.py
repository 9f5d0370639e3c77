"""GPU tests of the kernels: `pytest tests/kernels` on any machine with CUDA and the built library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sparkloom.kernels import available

REASON = available()
needs_gpu = pytest.mark.skipif(REASON is not None, reason=f"kernels cannot run here: {REASON}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and Path(__file__).parent in item.path.parents:
            item.add_marker(needs_gpu)


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(20)

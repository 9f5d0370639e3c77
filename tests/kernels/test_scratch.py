"""Scratch sizes, read off the library: they depend on shapes alone and stay small beside the routes' rows."""

from __future__ import annotations

import pytest

from sparkloom.errors import SparkloomError
from sparkloom.kernels import find_library
from sparkloom.kernels.loader import load

MIB = 1 << 20
GLM = {"topk": 8, "experts": 288, "hidden": 4096, "inter": 1024}
SMS = {"GB10": 48, "H200": 132}


@pytest.fixture(scope="module")
def library() -> object:
    if find_library() is None:
        pytest.skip("the kernel library is not built")
    try:
        return load()
    except SparkloomError as error:
        pytest.skip(f"torch here cannot load the kernel library: {error.detail}")


def size(library: object, tokens: int, sms: int, shared: int = 1) -> int:
    g = GLM
    return int(
        library.sparkloom_exl3_moe_workspace(
            tokens, g["topk"], g["experts"], g["hidden"], g["inter"], 4, 4, 1, 1, shared, sms
        )
    )


@pytest.mark.parametrize("sms", SMS.values(), ids=SMS)
@pytest.mark.parametrize("tokens", [1, 8, 64, 65, 512, 2048, 7168, 16384])
def test_under_16_mib_beside_the_rows_of_the_routes(library: object, tokens: int, sms: int) -> None:
    """A size serves both paths: rows are fp32 up to 64 tokens, fp16 above."""
    width = GLM["topk"] * GLM["hidden"]
    rows = max(min(tokens, 64) * width * 4, tokens * width * 2)
    assert size(library, tokens, sms) - rows < 16 * MIB


def test_a_size_grows_with_the_rows_and_serves_fewer(library: object) -> None:
    sizes = [size(library, tokens, 48) for tokens in (1, 8, 64, 65, 512, 4096)]
    assert sizes == sorted(sizes)

"""The encoder's search on a GPU against the CPU's: the same bits for every rate and codebook."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkloom.errors import SparkloomError
from sparkloom.exl3 import codebook, encode, unpack, viterbi
from sparkloom.exl3.encode import FILL
from sparkloom.exl3.tiles import pack
from sparkloom.kernels.checks import ENCODE_BITS

pytestmark = pytest.mark.gpu
CASES = [
    (bits, book)
    for bits in ENCODE_BITS
    for book in ("mcg", "mul1", "3inst")
    if bits == int(bits) or book == "mul1"
]


def tiles(bits: float, book: str, count: int = 150) -> Any:
    """Gaussian tiles as the encoder meets them, and odd ones: zeros, one value, outliers, tiny values."""
    rng = np.random.default_rng(7)
    spread = codebook(book).astype(np.float32).std(dtype=np.float64) * FILL[bits]
    found = (rng.standard_normal((count, 256)) * spread).astype(np.float32)
    found[0] = 0
    found[1] = 1.5
    found[2, ::17] = 50
    found[3] *= 1e-6
    return found


@pytest.mark.parametrize(("bits", "book"), CASES)
def test_the_same_bits_as_on_the_cpu(bits: float, book: str) -> None:
    import torch

    from sparkloom.kernels import ops

    stream = tiles(bits, book)
    table = torch.from_numpy(codebook(book).astype(np.float16)).cuda()
    got = ops.encode_tiles(torch.from_numpy(stream).cuda(), bits, table).cpu().numpy().view(np.uint16)
    states = viterbi.search(stream, bits, book, threads=1)
    want = pack(states, bits)
    assert got.shape == want.shape
    values = codebook(book).astype(np.float32)
    errors = [
        float(np.square(values[s] - stream, dtype=np.float64).sum()) for s in (unpack(got, bits), states)
    ]
    equal = (got == want).all(axis=1).mean()
    print(f"{bits} {book}: {equal:.4f} of tiles equal, error {errors[0] / errors[1]:.6f} of the CPU's")
    assert np.array_equal(got, want)


def test_window_repeats_and_many_tiles() -> None:
    """More tiles than blocks, another window, the same twice; a tile alone says the same."""
    import torch

    from sparkloom.kernels import ops

    stream = torch.from_numpy(tiles(4, "mcg", 700)).cuda()
    table = torch.from_numpy(codebook("mcg").astype(np.float16)).cuda()
    first = ops.encode_tiles(stream, 4, table, window=128)
    assert torch.equal(first, ops.encode_tiles(stream, 4, table, window=128))
    assert torch.equal(
        first[650:651],
        ops.encode_tiles(stream[650:651].contiguous(), 4, table, window=128),
    )
    want = pack(viterbi.search(stream[:20].cpu().numpy(), 4, "mcg", threads=1, window=128), 4)
    assert np.array_equal(first[:20].cpu().numpy().view(np.uint16), want)
    assert ops.encode_tiles(stream[:0], 4, table).shape == (0, 64)


def test_a_whole_linear() -> None:
    weight = np.random.default_rng(1).standard_normal((256, 384)).astype(np.float32)
    one, two = (encode(weight, 5, "mul1", 3, device=device, threads=1) for device in ("cpu", "cuda"))
    assert np.array_equal(one.trellis, two.trellis)
    assert np.array_equal(one.suh, two.suh)


def test_opcheck_and_refusals() -> None:
    import torch

    from sparkloom.kernels import ops
    from sparkloom.kernels.loader import load

    weights = torch.randn(3, 256, device="cuda")
    table = torch.from_numpy(codebook("mcg").astype(np.float16)).cuda()
    need = int(load().sparkloom_exl3_encode_workspace(8, 3, 0))
    space = torch.zeros(need, dtype=torch.uint8, device="cuda")
    out = torch.empty(3, 64, dtype=torch.int16, device="cuda")
    failed = torch.zeros(1, dtype=torch.int32, device="cuda")
    torch.library.opcheck(
        torch.ops.sparkloom_exl3.encode_tiles.default,
        (weights, table, space, out, failed, 8, 32),
        test_utils=("test_schema", "test_faketensor"),
    )
    for name, call in {
        "bits": lambda: ops.encode_tiles(weights, 1, table),
        "weights": lambda: ops.encode_tiles(weights[:, :128].contiguous(), 4, table),
        "codebook": lambda: ops.encode_tiles(weights, 4, table.float()),
        "window": lambda: ops.encode_tiles(weights, 4, table, window=3),
    }.items():
        with pytest.raises(SparkloomError) as caught:
            call()
        assert caught.value.field == name

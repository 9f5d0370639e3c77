"""Encode a dense weight as EXL3 without calibration data.

The weight is brought into the rotated basis, where it is close to Gaussian: output scales and signs, output
Hadamard, input scales and signs, input Hadamard. Each 16 x 16 tile is then searched by `viterbi`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError
from sparkloom.exl3 import viterbi
from sparkloom.exl3.codebooks import check_codebook, codebook
from sparkloom.exl3.device import for_rate, search
from sparkloom.exl3.hadamard import hadamard
from sparkloom.exl3.linear import Linear
from sparkloom.exl3.rates import BLOCK, TILE_SIZE, check_bits
from sparkloom.exl3.tiles import cut, pack

FILL = {1: 1.1, 1.5: 1.03, 2: 0.99, 2.5: 0.97, 3: 0.95, 3.5: 0.93, 4: 0.91, 5: 0.85, 6: 0.8, 7: 0.75, 8: 0.72}
"""Spread of the scaled weights over the codebook's, by rate: the least error on Gaussian tiles.

The finer the rate, the more the cut-off tails weigh: at 8 bits 0.97 would leave nine times the error of 0.72.
"""


def encode(
    weight: NDArray[Any],
    bits: int | float,
    codebook: str = "mcg",
    seed: int = 0,
    *,
    threads: int | None = None,
    progress: viterbi.Progress | None = None,
    device: str = "cpu",
) -> Linear:
    """Encode a weight. The same arguments give the same result, however many threads work on it, or a GPU.

    Zero input channels get suh = 0 and zero output channels svh = 0, so they decode to exact zeros.

    Args:
        weight: float [k, n] (inputs by outputs), finite, both dimensions multiples of 128.
        bits: 1 to 8, or 1.5, 2.5, 3.5 with mul1.
        codebook: `mcg`, `mul1` or `3inst`.
        seed: of the random signs.
        threads: how many; all cores of this process if left out.
        progress: called with (tiles done, tiles in all) after every few tiles.
        device: where the search runs, `cpu` or `cuda` (see `sparkloom.exl3.device.choose`).

    Raises:
        SparkloomError: wrong shape or dtype, NaN or infinity, no such rate or codebook.
    """
    rate = check_bits(bits, check_codebook(codebook))
    rotated, suh, svh = rotate(_checked(weight), rate, codebook, seed)
    tiles = cut(rotated)
    stream = tiles.reshape(-1, TILE_SIZE)
    if for_rate(device, rate) == "cuda":
        packed = search(stream, rate, codebook, progress=progress)
    else:
        packed = pack(viterbi.search(stream, rate, codebook, threads=threads, progress=progress), rate)
    return Linear(packed.view(np.int16).reshape(*tiles.shape[:2], -1), suh, svh, codebook)


def _checked(weight: NDArray[Any]) -> NDArray[np.float32]:
    weight = np.asarray(weight)
    if weight.ndim != 2 or weight.dtype.kind != "f":
        raise SparkloomError(
            "a weight must be a matrix of floats",
            field="weight",
            value=f"{weight.dtype}{list(weight.shape)}",
        )
    if 0 in weight.shape or any(size % BLOCK for size in weight.shape):
        raise SparkloomError(
            f"both dimensions of a weight must be multiples of {BLOCK}",
            field="weight.shape",
            value=list(weight.shape),
            mend="leave this weight as it is, or pad it with zero channels",
        )
    if not np.isfinite(weight).all():
        raise SparkloomError("the weight holds NaN or infinity", field="weight", mend="repair the source")
    return weight.astype(np.float32)


def rotate(
    weight: NDArray[np.float32], bits: int | float, name: str, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float16], NDArray[np.float16]]:
    """Scales of a weight, and the weight in the rotated basis as the codebook expects it.

    Returns:
        (float32[k, n] with the codebook's spread, suh float16[k], svh float16[n]).
    """
    rng = np.random.default_rng(seed)
    k, n = weight.shape
    column = _rms(weight, axis=0)
    live = column > 0
    mean = column[live].mean() if live.any() else np.float32(1)
    svh = _signs(rng, n) * np.where(live, column / mean, 1) * _occupancy(live)
    target = np.float32(codebook(name).astype(np.float64).std() * FILL[bits])
    power = _share(float(mean / target))
    svh_half = (svh * power).astype(np.float16)
    live &= svh_half != 0
    rotated = hadamard(np.where(live, weight / np.where(live, svh_half, 1).astype(np.float32), 0), axis=1)

    row = _rms(rotated, axis=1)
    alive = row > 0
    suh = _signs(rng, k) * np.where(alive, row, target) * _occupancy(alive) / target
    suh_half = suh.astype(np.float16)
    alive &= suh_half != 0
    rotated /= np.where(alive, suh_half, 1).astype(np.float32)[:, None]
    rotated[~alive] = 0
    zero = np.float16(0)
    return hadamard(rotated, axis=0), np.where(alive, suh_half, zero), np.where(live, svh_half, zero)


def _rms(x: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Root mean square in float32, sound for tiny and huge values."""
    peak = float(np.abs(x).max(initial=0.0)) or 1.0
    out: NDArray[np.float32] = np.sqrt(np.square(x / np.float32(peak)).mean(axis=axis)) * np.float32(peak)
    return out


def _signs(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    return rng.choice(np.array([-1, 1], np.float32), size)


def _occupancy(live: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Per channel the root of its block's share of live channels.

    The transform spreads a half-empty block over all of its channels and so halves its variance;
    a scale smaller by this factor makes up for it.
    """
    share = np.maximum(live.reshape(-1, BLOCK).mean(axis=1), 1 / BLOCK)
    return np.repeat(np.sqrt(share), BLOCK).astype(np.float32)


def _share(scale: float) -> np.float32:
    """The power of two of the overall scale that svh takes over, so that suh stays well inside fp16."""
    exponent = float(np.log2(max(scale, 1e-30)))
    outside = exponent + 10 if exponent < -10 else exponent - 8 if exponent > 8 else 0.0
    return np.float32(2.0 ** round(outside))

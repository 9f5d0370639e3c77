"""Weight-only FP8 (e4m3): the other format that `quantize` writes for dense matrices.

A weight is `float(code) * scale`, with one scale per output channel or per block of 128 x 128. Scales are
rounded up to values that bfloat16 holds, for kernels keep them in 16 bits: what is measured here is what they
compute with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError

BLOCK = 128
LARGEST = 448.0
SUFFIX = {"channel": "weight_scale", "block": "weight_scale_inv"}
"""Kind of scales to the tensor that holds them, as public FP8 checkpoints name it."""


@dataclass(frozen=True, eq=False)
class Fp8:
    """An FP8 matrix.

    Attributes:
        codes: uint8[n, k], bit patterns of e4m3.
        scale: float32[n, 1] or float32[ceil(n / 128), ceil(k / 128)].
        scales: `channel` or `block`.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    scales: str


def scale_shape(n: int, k: int, scales: str) -> tuple[int, int]:
    """Shape of the scales of n x k weights."""
    return (n, 1) if scales == "channel" else (-(-n // BLOCK), -(-k // BLOCK))


def to_e4m3(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Nearest e4m3 codes, ties to even, saturating at 448.

    Args:
        x: finite float32 of any shape.
    """
    sign = (np.signbit(x).astype(np.uint8)) << np.uint8(7)
    size = np.minimum(np.abs(x), np.float32(LARGEST))
    bits = size.view(np.uint32)
    # Normal codes: keep three bits of the fraction; the carry of the rounding runs into the exponent.
    rounded = (bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)
    normal = (rounded - np.uint32((127 - 7) << 3)).astype(np.uint8)
    small = np.rint(size * np.float32(512.0)).astype(np.uint8)  # below 2^-6 in steps of 2^-9
    codes: NDArray[np.uint8] = np.where(size < np.float32(2.0**-6), small, normal) | sign
    return codes


def values() -> NDArray[np.float32]:
    """float32[256]: what each code stands for; NaN for 0x7F and 0xFF."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    size[(code & 127) == 127] = np.nan
    return np.where(code & 128, -size, size).astype(np.float32)


def round_up_bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The next value that bfloat16 holds, for positive float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def spread(scale: NDArray[np.float32], n: int, k: int, scales: str) -> NDArray[np.float32]:
    """The scale of every weight, broadcastable to [n, k]."""
    if scales == "channel":
        return scale
    return np.repeat(np.repeat(scale, BLOCK, 0)[:n], BLOCK, 1)[:, :k]


def encode(weight: NDArray[np.float32], scales: str = "channel") -> Fp8:
    """Quantise a matrix.

    Args:
        weight: float32[n, k] (outputs by inputs), finite.
        scales: `channel` or `block`.

    Raises:
        SparkloomError: NaN or infinity.
    """
    if not np.isfinite(weight).all():
        raise SparkloomError("the weight holds NaN or infinity", field="weight", mend="repair the source")
    n, k = weight.shape
    size = np.abs(weight)
    if scales == "channel":
        top = size.max(axis=1, keepdims=True)
    else:
        rows, columns = scale_shape(n, k, scales)
        padded = np.zeros((rows * BLOCK, columns * BLOCK), np.float32)
        padded[:n, :k] = size
        top = padded.reshape(rows, BLOCK, columns, BLOCK).max(axis=(1, 3))
    scale = round_up_bf16(np.where(top > 0, np.maximum(top / np.float32(LARGEST), np.float32(2.0**-100)), 1))
    return Fp8(to_e4m3(weight / spread(scale, n, k, scales)), scale, scales)


def decode(matrix: Fp8) -> NDArray[np.float32]:
    """float32[n, k] of a quantised matrix."""
    n, k = matrix.codes.shape
    return values()[matrix.codes] * spread(matrix.scale, n, k, matrix.scales)


def error_of(matrix: Fp8, weight: NDArray[np.float32]) -> tuple[float, float]:
    """(squared error over squared weight, largest absolute error)."""
    difference = decode(matrix) - weight
    norm = float(np.square(weight, dtype=np.float64).sum())
    error = float(np.square(difference, dtype=np.float64).sum())
    return (error / norm if norm else 0.0), float(np.abs(difference).max(initial=0.0))

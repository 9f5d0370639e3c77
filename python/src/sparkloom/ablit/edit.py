"""The arithmetic: projection, relative change, cuts for a rank, rounding. Pure NumPy in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
ROWS = 512
"""Rows of one block: bounds the memory of the sums in float64."""


def unit(direction: Matrix) -> Matrix:
    """A direction `[out]` as a unit vector.

    Raises:
        ValueError: it has no direction (zero, or not finite).
    """
    norm = float(np.sqrt(np.sum(direction.astype(np.float64) ** 2)))
    if not np.isfinite(norm) or norm == 0.0:
        raise ValueError("the direction is zero or not finite")
    return (direction.astype(np.float64) / norm).astype(np.float32)


def project(weight: Matrix, direction: Matrix, strength: float) -> Matrix:
    """W - strength * r rᵀ W for a weight `[out, in]` and a direction `[out]` (normed here).

    Every input column is treated alone, so a rank that holds a range of columns gets the same numbers as by
    cutting the whole result.
    """
    r = unit(direction)
    along = np.einsum("o,oi->i", r.astype(np.float64), weight.astype(np.float64)).astype(np.float32)
    result: Matrix = weight - np.float32(strength) * np.outer(r, along).astype(np.float32)
    return result


def relative_change(before: Matrix, after: Matrix) -> float:
    """|after - before| / |before|, Frobenius norms; inf where `before` is all zero and `after` is not."""
    moved = size = 0.0
    for i in range(0, before.shape[0], ROWS):
        a, b = before[i : i + ROWS].astype(np.float64), after[i : i + ROWS].astype(np.float64)
        moved += float(np.sum((b - a) ** 2))
        size += float(np.sum(a**2))
    if size == 0.0:
        return 0.0 if moved == 0.0 else float("inf")
    return float(np.sqrt(moved / size))


def cut(weight: Matrix, rank: int, world: int, axis: int) -> Matrix:
    """The share of one rank: axis 1 for a row-parallel layer (inputs split), 0 for a column-parallel one.

    Raises:
        ValueError: the axis does not divide.
    """
    size, rest = divmod(weight.shape[axis], world)
    if rest:
        raise ValueError(f"{weight.shape[axis]} does not divide by {world}")
    return np.take(weight, range(rank * size, (rank + 1) * size), axis=axis)


def bf16(values: Matrix) -> NDArray[np.uint16]:
    """Bit patterns of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(values: Matrix, dtype: str) -> Matrix:
    """The values as a tensor of this type (BF16, F16, F32) holds them."""
    if dtype == "BF16":
        return (bf16(values).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float16).astype(np.float32) if dtype == "F16" else values

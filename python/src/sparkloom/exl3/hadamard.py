"""The blockwise 128-point Hadamard transform, into the basis in which weights are coded and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError
from sparkloom.exl3.rates import BLOCK

SCALE = np.array(0x3DB504F3, np.uint32).view(np.float32)[()]
"""1 / sqrt(128) in fp32, the constant of the format."""


def hadamard_matrix() -> NDArray[np.float32]:
    """float32[128, 128]: Sylvester's matrix in natural order over sqrt(128); symmetric, its own inverse."""
    index = np.arange(BLOCK)
    common = index[:, None] & index
    parity = np.zeros_like(common)
    while common.any():
        parity ^= common & 1
        common >>= 1
    return (np.where(parity, -SCALE, SCALE)).astype(np.float32)


def hadamard(x: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """Transform each consecutive group of 128 channels along `axis`; its own inverse.

    Butterflies from the nearest neighbours outward, then the scale: the order of the kernels.

    Args:
        x: any shape; float32 or float64 (others are taken as float32).

    Returns:
        A new array of the same shape.

    Raises:
        SparkloomError: the axis is no multiple of 128.
    """
    x = np.asarray(x)
    if x.shape[axis] % BLOCK:
        raise SparkloomError(
            "the Hadamard transform needs a multiple of 128 channels", field="shape", value=list(x.shape)
        )
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    moved = np.moveaxis(x, axis, 0)
    rest = moved.shape[1:]
    # Channels first, the rest as long contiguous rows: every butterfly is one vector add.
    work: NDArray[Any] = np.ascontiguousarray(moved, dtype).reshape(-1, BLOCK, int(np.prod(rest, dtype=int)))
    if np.shares_memory(work, x):
        work = work.copy()
    half = 1
    while half < BLOCK:
        pair = work.reshape(work.shape[0], BLOCK // (2 * half), 2, half, work.shape[2])
        difference = np.subtract(pair[:, :, 0], pair[:, :, 1])
        np.add(pair[:, :, 0], pair[:, :, 1], out=pair[:, :, 0])
        pair[:, :, 1] = difference
        half *= 2
    np.multiply(work, dtype(SCALE), out=work)
    return np.ascontiguousarray(np.moveaxis(work.reshape(moved.shape), 0, axis))

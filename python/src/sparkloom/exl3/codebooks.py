"""The three codebooks: 65,536 fp16 values each, computed from the 16-bit state in exact arithmetic."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError

CODEBOOKS = ("3inst", "mcg", "mul1")

MCG_MULTIPLIER = 0xCBAC1FED
MUL1_MULTIPLIER = 0x83DCD12D
MARKERS = {"mcg": MCG_MULTIPLIER, "mul1": MUL1_MULTIPLIER}
"""Marker tensor (a scalar) that selects a codebook, and the value it holds. No marker means 3inst."""

_INST_FACTOR, _INST_OFFSET = 89226354, 64248484
_MASK, _FLIP = 0x8FFF8FFF, 0x3B603B60
_MUL1_SCALE, _MUL1_OFFSET = 0x1EEE, 0xC931  # fp16 bit patterns


def marker_value(name: str) -> int:
    """The marker's value as the signed int32 that checkpoints hold."""
    value = MARKERS[name]
    return value - (1 << 32) if value >= 1 << 31 else value


def check_codebook(name: str) -> str:
    """Return `name` if it is a codebook.

    Raises:
        SparkloomError: it is none.
    """
    if name not in CODEBOOKS:
        raise SparkloomError(
            "unknown codebook", field="codebook", value=name, mend="use one of " + ", ".join(CODEBOOKS)
        )
    return name


def codebook(name: str) -> NDArray[np.float16]:
    """float16[65536], read-only: the value of every state of `3inst`, `mcg` or `mul1`.

    Raises:
        SparkloomError: unknown name.
    """
    return _table(check_codebook(name))


@cache
def _table(name: str) -> NDArray[np.float16]:
    state = np.arange(65536, dtype=np.uint64)
    if name == "3inst":
        product = state * np.uint64(_INST_FACTOR) + np.uint64(_INST_OFFSET)
    else:
        product = state * np.uint64(MARKERS[name])
    mixed = (product & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    values = _byte_sum(mixed) if name == "mul1" else _half_sum(mixed)
    values.flags.writeable = False
    return values


def _half_sum(mixed: NDArray[np.uint32]) -> NDArray[np.float16]:
    """Both halves of the masked word as fp16, added with one rounding (fp32 holds the sum exactly)."""
    halves = ((mixed & np.uint32(_MASK)) ^ np.uint32(_FLIP)).view(np.uint16).view(np.float16)
    pairs = halves.reshape(-1, 2).astype(np.float32)
    return (pairs[:, 0] + pairs[:, 1]).astype(np.float16)


def _byte_sum(mixed: NDArray[np.uint32]) -> NDArray[np.float16]:
    """The four bytes' sum through one fp16 fused multiply-add (fp64 holds product and sum exactly)."""
    total = mixed.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.uint16)
    scale, offset = np.array([_MUL1_SCALE, _MUL1_OFFSET], np.uint16).view(np.float16).astype(np.float64)
    values: NDArray[np.float64] = (1024.0 + total) * scale + offset
    return values.astype(np.float16)

"""Packed signs of old EXL3 files: `su`, `sv` hold one bit per channel where `suh`, `svh` hold a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError


def unpack_signs(words: NDArray[Any]) -> NDArray[np.float16]:
    """float16[16 * len]: +1 or -1 per channel.

    Args:
        words: int16 or uint16 [channels / 16]; bit i (from the lowest) of word j is channel 16 j + i,
            set = -1.
    """
    words = np.asarray(words)
    if words.dtype not in (np.int16, np.uint16) or words.ndim != 1:
        raise SparkloomError(
            "packed signs must be 16-bit integers in one dimension",
            field="su",
            value=f"{words.dtype}{list(words.shape)}",
        )
    bits = (words.view(np.uint16)[:, None] >> np.arange(16, dtype=np.uint16)) & 1
    return np.where(bits.reshape(-1) == 1, np.float16(-1), np.float16(1)).astype(np.float16)


def pack_signs(scales: NDArray[Any]) -> NDArray[np.int16]:
    """int16[channels / 16]: the signs of `scales`; the inverse of `unpack_signs` on values of +1 and -1."""
    negative = (np.asarray(scales).reshape(-1, 16) < 0).astype(np.uint32)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(negative << np.arange(16, dtype=np.uint32), axis=1)
    packed: NDArray[np.int16] = words.astype(np.uint16).view(np.int16)
    return packed

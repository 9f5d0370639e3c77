"""Bits per weight: which rates exist, how wide a tile is, where each weight's bits lie in it.

A tile has 256 weights and `256 * bits` bits. At a half rate K + 0.5 the even positions
carry K new bits and the odd ones K + 1.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError

TILE = 16
TILE_SIZE = TILE * TILE
BLOCK = 128
"""Width of a Hadamard block; both dimensions of a linear are multiples of it."""

RATES: tuple[int | float, ...] = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
HALF_RATES: tuple[float, ...] = (1.5, 2.5, 3.5)


def check_bits(bits: Any, codebook: str | None = None) -> int | float:
    """Return `bits` as int (whole rates) or float (half rates).

    Raises:
        SparkloomError: a rate that the format does not have, or a half rate with another codebook than mul1.
    """
    for rate in RATES:
        if isinstance(bits, int | float | np.number) and not isinstance(bits, bool) and bits == rate:
            if codebook is not None and codebook != "mul1" and rate in HALF_RATES:
                raise SparkloomError(
                    f"the half rate {rate} exists with the codebook mul1 alone",
                    field="codebook",
                    value=codebook,
                    mend="use mul1, or a whole number of bits from 1 to 8",
                )
            return rate
    raise SparkloomError(
        "no such rate in EXL3",
        field="bits",
        value=bits,
        mend="use " + ", ".join(map(str, RATES)) + " bits per weight (half rates with the codebook mul1)",
    )


def words_of(bits: int | float) -> int:
    """Number of 16-bit words of one tile."""
    return int(TILE * check_bits(bits))


def bits_of(words: int) -> int | float:
    """Rate of a tile that has `words` 16-bit words.

    Raises:
        SparkloomError: no rate has this width.
    """
    for rate in RATES:
        if words == TILE * rate:
            return rate
    raise SparkloomError(
        "a tile's width fits no rate of EXL3",
        field="trellis.shape[2]",
        value=words,
        mend="the last dimension of a trellis is 16 x bits: " + ", ".join(str(int(TILE * r)) for r in RATES),
    )


@cache
def widths(bits: int | float) -> NDArray[np.int64]:
    """int64[256]: how many new bits each position adds."""
    low = int(bits)
    return np.where(np.arange(TILE_SIZE) & 1, low if low == bits else low + 1, low).astype(np.int64)


@cache
def ends(bits: int | float) -> NDArray[np.int64]:
    """int64[256]: the bit of the ring where each position ends (exclusive)."""
    return np.cumsum(widths(bits))

"""Tiles: 256 weights as a ring of bits, and the order in which they make up a matrix.

A tile's words are read as little-endian 32-bit words, each from its most significant bit: a ring
of `256 * bits` bits. The state of a position is the 16 bits that end there, so the first states
reach round to the ring's end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError
from sparkloom.exl3.codebooks import check_codebook, codebook
from sparkloom.exl3.rates import TILE, TILE_SIZE, bits_of, check_bits, ends, widths, words_of


@cache
def stream_order() -> NDArray[np.int64]:
    """int64[256]: the row-major index (16 * row + column) of the weight at each position of the ring.

    This is the register order of the tensor core's m16n8k16 fragments: position = 8 * lane + register.
    """
    lane, register = np.divmod(np.arange(TILE_SIZE), 8)
    row = 2 * (lane & 3) + (register & 1) + 8 * ((register >> 1) & 1)
    column = (lane >> 2) + 8 * ((register >> 2) & 1)
    order: NDArray[np.int64] = TILE * row + column
    return order


def _as_words(words: NDArray[Any], bits: int | float | None) -> tuple[NDArray[np.uint16], int | float]:
    words = np.asarray(words)
    if words.dtype not in (np.uint16, np.int16) or words.ndim == 0:
        raise SparkloomError(
            "packed tiles must be 16-bit integers", field="dtype", value=f"{words.dtype}{list(words.shape)}"
        )
    rate = bits_of(words.shape[-1])
    if bits is not None and check_bits(bits) != rate:
        raise SparkloomError(
            f"a tile of {bits} bits has {words_of(bits)} words", field="shape", value=list(words.shape)
        )
    return np.ascontiguousarray(words).view(np.uint16), rate


def unpack(words: NDArray[Any], bits: int | float | None = None) -> NDArray[np.uint16]:
    """States of packed tiles.

    Args:
        words: uint16 or int16 [..., 16 * bits].
        bits: the rate; taken from the width if left out, and checked against it otherwise.

    Returns:
        uint16[..., 256], in ring order.

    Raises:
        SparkloomError: no 16-bit integers, or a width that fits no rate.
    """
    tiles, rate = _as_words(words, bits)
    pairs = tiles.reshape(-1, tiles.shape[-1] // 2, 2).astype(np.uint32)
    ring = pairs[..., 0] | (pairs[..., 1] << np.uint32(16))
    last = ends(rate) - 1  # the bit where each state ends, inclusive
    word, shift = last >> 5, (31 - (last & 31)).astype(np.uint64)
    window = ring[:, word].astype(np.uint64)
    window |= ring[:, word - 1].astype(np.uint64) << np.uint64(32)  # -1 is the last word: the ring closes
    window >>= shift
    return window.astype(np.uint16).reshape(*tiles.shape[:-1], TILE_SIZE)


def pack(states: NDArray[Any], bits: int | float) -> NDArray[np.uint16]:
    """Packed tiles of states; the inverse of `unpack`.

    Only the new bits of each state are stored (the low `bits` bits); the rest repeats its predecessors.

    Args:
        states: integers [..., 256] below 65,536, in ring order.
        bits: the rate.

    Returns:
        uint16[..., 16 * bits]; view it as int16 for a checkpoint.
    """
    rate = check_bits(bits)
    states = np.asarray(states)
    if states.shape[-1:] != (TILE_SIZE,) or states.dtype.kind not in "iu":
        raise SparkloomError(
            "states must be integers [..., 256]", field="states", value=f"{states.dtype}{list(states.shape)}"
        )
    columns = np.ascontiguousarray(states.reshape(-1, TILE_SIZE).T).astype(np.uint64)
    ring = np.zeros((words_of(rate) // 2, columns.shape[1]), np.uint64)
    for position, (end, width) in enumerate(zip(ends(rate).tolist(), widths(rate).tolist(), strict=True)):
        new = columns[position] & np.uint64((1 << width) - 1)
        word, room = (end - 1) >> 5, 31 - ((end - 1) & 31)
        ring[word] |= new << np.uint64(room)
        if room + width > 32:
            ring[word - 1] |= new >> np.uint64(32 - room)
    packed = np.ascontiguousarray(ring.T).astype(np.uint32)  # drops what reached over into the word before
    out = np.empty((*packed.shape, 2), np.uint16)
    out[..., 0] = packed & np.uint32(0xFFFF)
    out[..., 1] = packed >> np.uint32(16)
    return out.reshape(*states.shape[:-1], words_of(rate))


def decode_tile(words: NDArray[Any], bits: int | float, codebook: str) -> NDArray[np.float16]:
    """float16[16, 16]: one tile, rows are inputs (k), columns outputs (n).

    Args:
        words: uint16 or int16 [16 * bits].
        bits: the rate.
        codebook: `3inst`, `mcg` or `mul1`.
    """
    words = np.asarray(words)
    if words.shape != (words_of(bits),):
        raise SparkloomError(
            f"a tile of {bits} bits has {words_of(bits)} words", field="shape", value=list(words.shape)
        )
    check_bits(bits, check_codebook(codebook))
    return decode(words.reshape(1, 1, -1), codebook)


def decode(trellis: NDArray[Any], codebook: str) -> NDArray[np.float16]:
    """Decode a whole matrix in the rotated basis (no Hadamard, no scales).

    Args:
        trellis: int16[k / 16, n / 16, 16 * bits].
        codebook: `3inst`, `mcg` or `mul1`.

    Returns:
        float16[k, n].
    """
    if np.ndim(trellis) != 3:
        raise SparkloomError(
            "a trellis has three dimensions [k/16, n/16, 16 x bits]",
            field="trellis.shape",
            value=list(np.shape(trellis)),
        )
    return join(decode_stream(trellis, codebook))


def decode_stream(words: NDArray[Any], name: str) -> NDArray[np.float16]:
    """float16[..., 256]: the weights of packed tiles in ring order."""
    check_bits(bits_of(np.shape(words)[-1]), check_codebook(name))
    table = codebook(name)
    flat = np.asarray(words).reshape(-1, np.shape(words)[-1])
    out = np.empty((len(flat), TILE_SIZE), np.float16)
    for start in range(0, len(flat), 4096):  # bounds the 64-bit windows to 8 MiB
        out[start : start + 4096] = table[unpack(flat[start : start + 4096])]
    return out.reshape(*np.shape(words)[:-1], TILE_SIZE)


def join(stream: NDArray[Any]) -> NDArray[Any]:
    """[k, n] of tiles [k / 16, n / 16, 256] in ring order."""
    rows, columns = stream.shape[:2]
    tiles = np.empty_like(stream)
    tiles[..., stream_order()] = stream
    return tiles.reshape(rows, columns, TILE, TILE).transpose(0, 2, 1, 3).reshape(rows * TILE, columns * TILE)


def cut(matrix: NDArray[Any]) -> NDArray[Any]:
    """[k / 16, n / 16, 256] in ring order of a matrix [k, n]; the inverse of `join`."""
    k, n = matrix.shape
    tiles = matrix.reshape(k // TILE, TILE, n // TILE, TILE).transpose(0, 2, 1, 3)
    return tiles.reshape(k // TILE, n // TILE, TILE_SIZE)[..., stream_order()]

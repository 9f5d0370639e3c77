"""The format, bit for bit: codebooks, golden tiles, packing, the order of weights in a tile."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom import exl3
from sparkloom.errors import SparkloomError

STATES = [0, 1, 2, 3, 0x1234, 0x8000, 0xABCD, 0xFFFF]
CODEBOOK = {
    "3inst": ("ad88de2dcff5bb05fff2faec37cceceb", "3A25 BB5B 3B74 34B6 C066 B7F8 B98E B110", 1.24371, 10598),
    "mcg": ("95383563929baa9d1ae5de0be2249028", "3F60 304E BA13 3AB8 3E0F B915 35E7 3ACD", 1.24411, 10746),
    "mul1": ("bc48d02cb1c14939dc47b90f870dd689", "C2E8 3921 B72D 3239 B89E BAF2 BD42 B936", 1.00031, 913),
}
GOLDEN_TILE = {
    1: "2b0836100b9c7782",
    2: "cb90cc76b7bfaee0",
    3: "5e538314d597da3f",
    4: "de6961641813454e22b09ab498859693",
    5: "2db8077403d93cd0",
    6: "4ae08cf53a9d6120",
    7: "9841f494dad5839d",
    8: "0e78dfbbe276548d",
    1.5: "2e6eb0157cdb9c58",
    2.5: "22502eec2dd1b48b",
    3.5: "37759a4a91a5f1da",
}


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def golden_words(bits: float) -> np.ndarray:
    return ((40503 * np.arange(int(16 * bits), dtype=np.int64) + 7) & 0xFFFF).astype(np.uint16)


def hexes(values: np.ndarray) -> str:
    return " ".join(f"{v:04X}" for v in values.view(np.uint16).tolist())


@pytest.mark.parametrize("name", exl3.CODEBOOKS)
def test_codebook(name: str) -> None:
    digest, spots, std, distinct = CODEBOOK[name]
    values = exl3.codebook(name)
    assert values.dtype == np.float16
    assert values.shape == (65536,)
    assert sha256(values).startswith(digest)
    assert hexes(values[STATES]) == spots
    assert values.astype(np.float64).std() == pytest.approx(std, abs=6e-6)
    assert len(np.unique(values)) == distinct
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 0


def test_golden_states() -> None:
    states = exl3.unpack(golden_words(4), 4)
    assert hexes(states[:10]) == "1599 599E 99E3 9E3E E3E0 3E00 E000 0007 007D 07DA"
    assert states[255] == 0x5159
    assert sha256(states).startswith("137ca4b70d4749ab49e0c62b7bbdf3aa")


@pytest.mark.parametrize("bits", GOLDEN_TILE)
def test_golden_tile(bits: float) -> None:
    tile = exl3.decode_tile(golden_words(bits), bits, "mcg" if bits in range(9) else "mul1")
    assert tile.dtype == np.float16
    assert tile.shape == (16, 16)
    assert sha256(tile).startswith(GOLDEN_TILE[bits])
    if bits == 4:
        assert hexes(tile[0, :6]) == "BFA9 2E10 BE06 3891 9C00 3A12"


def test_stream_order() -> None:
    order = exl3.stream_order()
    assert order[:16].tolist() == [0, 16, 128, 144, 8, 24, 136, 152, 32, 48, 160, 176, 40, 56, 168, 184]
    assert sorted(order.tolist()) == list(range(256))


@given(st.sampled_from(exl3.RATES), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_pack_undoes_unpack(bits: float, tiles: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 65536, (tiles, 2, int(16 * bits))).astype(np.uint16)
    states = exl3.unpack(words)
    assert states.shape == (tiles, 2, 256)
    assert np.array_equal(exl3.pack(states, bits), words)
    assert np.array_equal(exl3.unpack(words.view(np.int16), bits), states)


@given(st.sampled_from(exl3.RATES), st.integers(0, 2**32 - 1))
def test_each_state_continues_the_one_before(bits: float, seed: int) -> None:
    """A state's upper bits are its predecessor's lower ones; the first one's predecessor is the last."""
    words = np.random.default_rng(seed).integers(0, 65536, int(16 * bits)).astype(np.uint16)
    states = exl3.unpack(words).astype(np.int64)
    for i in range(256):
        width = int(bits) + (bits != int(bits) and i % 2)
        assert states[i] >> width == states[i - 1] & ((1 << (16 - width)) - 1)


def test_decode_places_tiles() -> None:
    words = np.random.default_rng(1).integers(-32768, 32768, (8, 16, 48)).astype(np.int16)
    whole = exl3.decode(words, "mul1")
    assert whole.shape == (128, 256)
    for row, column in ((0, 0), (3, 15), (7, 4)):
        tile = exl3.decode_tile(words[row, column].view(np.uint16), 3, "mul1")
        assert np.array_equal(whole[16 * row : 16 * row + 16, 16 * column : 16 * column + 16], tile)


@pytest.mark.parametrize("bits", [0, 9, 4.5, 0.5, -4, True, "4", None])
def test_rates_outside_the_format(bits: object) -> None:
    with pytest.raises(SparkloomError, match="no such rate") as error:
        exl3.decode_tile(np.zeros(64, np.uint16), bits, "mcg")
    assert error.value.field == "bits"
    assert "1.5" in error.value.mend


def test_half_rates_are_mul1_only() -> None:
    with pytest.raises(SparkloomError, match="mul1 alone"):
        exl3.decode_tile(golden_words(2.5), 2.5, "mcg")


def test_unknown_codebook() -> None:
    with pytest.raises(SparkloomError, match="unknown codebook") as error:
        exl3.codebook("mcg2")
    assert error.value.value == "mcg2"
    assert "3inst" in error.value.mend


@pytest.mark.parametrize(
    ("words", "bits"),
    [
        (np.zeros(63, np.uint16), 4),
        (np.zeros(64, np.uint16), 3),
        (np.zeros(64, np.int32), 4),
        (np.zeros(20, np.uint16), None),
    ],
)
def test_wrong_tiles(words: np.ndarray, bits: float | None) -> None:
    with pytest.raises(SparkloomError):
        exl3.unpack(words, bits)


def test_wrong_states() -> None:
    with pytest.raises(SparkloomError):
        exl3.pack(np.zeros((2, 255), np.uint16), 4)
    with pytest.raises(SparkloomError):
        exl3.pack(np.zeros(256), 4)

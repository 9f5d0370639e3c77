"""The reference itself against golden values of the format, and refusals that need no GPU."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import reference as ref
import torch

from sparkloom.errors import SparkloomError
from sparkloom.kernels import ops
from sparkloom.kernels.loader import NAME, VARIABLE, find_library

BOOK_HASHES = {
    "3inst": "ad88de2dcff5bb05fff2faec37cceceb",
    "mcg": "95383563929baa9d1ae5de0be2249028",
    "mul1": "bc48d02cb1c14939dc47b90f870dd689",
}
TILE_HASHES = {  # words (40503 i + 7) mod 2^16, MCG
    2: "cb90cc76b7bfaee0",
    3: "5e538314d597da3f",
    4: "de6961641813454e",
    5: "2db8077403d93cd0",
    6: "4ae08cf53a9d6120",
    8: "0e78dfbbe276548d",
}


@pytest.mark.parametrize("name", BOOK_HASHES)
def test_codebooks(name: str) -> None:
    assert hashlib.sha256(ref.codebook(name).tobytes()).hexdigest()[:32] == BOOK_HASHES[name]


@pytest.mark.parametrize("bits", TILE_HASHES)
def test_golden_tiles(bits: int) -> None:
    words = ((40503 * np.arange(16 * bits) + 7) & 0xFFFF).astype(np.uint16).view(np.int16)
    tile = ref.decode(torch.from_numpy(words)[None, None], "mcg").numpy()
    assert hashlib.sha256(tile.tobytes()).hexdigest()[:16] == TILE_HASHES[bits]


def test_cpu_tensors_are_refused_by_name() -> None:
    w = ref.random_experts(2, 128, 128, 4, 4)
    with pytest.raises(SparkloomError, match="CUDA tensor") as caught:
        ops.Experts(**w)
    assert caught.value.field == "w13_trellis"


def test_a_named_library_must_exist(tmp_path: object) -> None:
    with pytest.raises(SparkloomError, match="not there"):
        find_library({VARIABLE: str(tmp_path)})
    (tmp_path / NAME).touch()
    assert find_library({VARIABLE: str(tmp_path)}) == tmp_path / NAME

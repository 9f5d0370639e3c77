"""EXL3, the trellis-coded weight format: codec, sharding, checkpoints.

`docs/exl3.md` describes the format. Importing this package costs NumPy only; numba is loaded by `encode`.
"""

from sparkloom.exl3.codebooks import CODEBOOKS, MARKERS, codebook, marker_value
from sparkloom.exl3.encode import encode
from sparkloom.exl3.hadamard import hadamard, hadamard_matrix
from sparkloom.exl3.linear import SUFFIXES, Linear, dense_weight, forward
from sparkloom.exl3.rates import BLOCK, RATES, TILE, bits_of
from sparkloom.exl3.signs import pack_signs, unpack_signs
from sparkloom.exl3.tiles import decode, decode_tile, pack, stream_order, unpack
from sparkloom.exl3.tp import slice_tp

__all__ = [
    "BLOCK",
    "CODEBOOKS",
    "MARKERS",
    "RATES",
    "SUFFIXES",
    "TILE",
    "Linear",
    "bits_of",
    "codebook",
    "decode",
    "decode_tile",
    "dense_weight",
    "encode",
    "forward",
    "hadamard",
    "hadamard_matrix",
    "marker_value",
    "pack",
    "pack_signs",
    "slice_tp",
    "stream_order",
    "unpack",
    "unpack_signs",
]

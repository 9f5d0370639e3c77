"""Tensor parallelism: cut an EXL3 linear between ranks without coding it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from sparkloom.errors import SparkloomError
from sparkloom.exl3.linear import Linear
from sparkloom.exl3.rates import BLOCK, TILE

Axis = Literal["n", "k", "out", "in", "output", "input", "column", "row", 0, 1]
_OUTPUTS = ("n", "out", "output", "column", 1)
_INPUTS = ("k", "in", "input", "row", 0)


def slice_tp(linear: Linear, rank: int, world: int, axis: Axis) -> Linear:
    """The part of `linear` that `rank` of `world` ranks holds.

    Args:
        linear: the whole layer.
        rank: 0 to world - 1.
        world: number of ranks.
        axis: `n` (also `out`, `column`, 1) cuts the outputs, as for gate and up: trellis dimension 1, svh
            and bias. `k` (also `in`, `row`, 0) cuts the inputs, as for down: trellis dimension 0 and suh;
            the ranks' results are summed, so rank 0 alone keeps the bias.

    Raises:
        SparkloomError: the cut does not fall on a multiple of 128, or rank, world or axis are no such.
    """
    if axis not in _OUTPUTS + _INPUTS:
        raise SparkloomError(
            "no such axis", field="axis", value=axis, mend="use 'n' (outputs) or 'k' (inputs)"
        )
    if world < 1 or not 0 <= rank < world:
        raise SparkloomError(
            "no such rank", field="rank", value=f"{rank} of {world}", mend="0 <= rank < world"
        )
    outputs = axis in _OUTPUTS
    size = linear.n if outputs else linear.k
    if size % (BLOCK * world):
        raise SparkloomError(
            f"{size} {'outputs' if outputs else 'inputs'} do not split over {world} ranks"
            f" in multiples of {BLOCK}",
            field="n" if outputs else "k",
            value=size,
            mend=f"use a tensor-parallel size that divides {size // BLOCK}",
        )
    part = slice(rank * (size // world), (rank + 1) * (size // world))
    tiles = slice(part.start // TILE, part.stop // TILE)
    if outputs:
        return replace(
            linear,
            trellis=np.ascontiguousarray(linear.trellis[:, tiles]),
            svh=linear.svh[part].copy(),
            bias=None if linear.bias is None else linear.bias[part].copy(),
        )
    return replace(
        linear,
        trellis=linear.trellis[tiles].copy(),
        suh=linear.suh[part].copy(),
        bias=linear.bias if rank == 0 else None,
    )

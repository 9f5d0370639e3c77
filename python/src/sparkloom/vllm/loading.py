"""What the loaders of experts and linears share: parameters, cuts for a rank, checks that name the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.utils import set_weight_attrs

from sparkloom.errors import Exit, SparkloomError
from sparkloom.vllm.checkpoint import MARKERS

TILE, BLOCK = 16, 128
PIECE = 1 << 24
"""Elements that are checked at a time."""


def parameter(
    layer: torch.nn.Module,
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    loader: Callable[..., Any],
) -> torch.nn.Parameter:
    """Register an empty parameter with its own loader."""
    found = torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
    layer.register_parameter(name, found)
    set_weight_attrs(found, {"weight_loader": loader})
    return found


def divisible(tensor: str, what: str, whole: int, world: int, source: str) -> None:
    """The share of each rank must be whole 128-blocks of the Hadamard transform.

    Raises:
        SparkloomError: it is not; the mend lists the sizes that work.
    """
    if whole % (BLOCK * world) == 0:
        return
    sizes = [str(w) for w in (1, 2, 3, 4, 6, 8) if whole % (BLOCK * w) == 0]
    raise SparkloomError(
        f"{tensor}: {what} of {whole} cannot be split over {world} ranks in multiples of {BLOCK}",
        file=source,
        field=tensor,
        value=whole,
        mend="use a tensor-parallel size of " + " or ".join(sizes)
        if sizes
        else f"pad the matrix to a multiple of {BLOCK} when it is encoded",
        code=Exit.INPUT,
    )


def put(target: torch.Tensor, value: torch.Tensor, tensor: str, source: str) -> None:
    """Copy a loaded tensor (already cut for this rank) into its place.

    Raises:
        SparkloomError: other shape or type, or scales that are not finite.
    """
    if target.shape != value.shape or target.dtype != value.dtype:
        raise SparkloomError(
            f"{tensor}: {value.dtype} {list(value.shape)} where {target.dtype} {list(target.shape)} belongs",
            file=source,
            field=tensor,
            mend="the checkpoint and its config.json do not fit together: fetch both again",
        )
    if value.is_floating_point() and not finite(value):
        raise SparkloomError(
            f"{tensor}: scales that are not finite",
            file=source,
            field=tensor,
            mend="fetch the shard that holds it again",
        )
    target.copy_(value)


def finite(value: torch.Tensor) -> bool:
    """Whether every value is; in pieces, so that a large tensor needs little memory beside it."""
    if value.is_meta:
        return True
    rows = max(1, PIECE // max(1, value[:1].numel())) if value.dim() else 1
    for part in value.split(rows) if value.dim() else [value]:
        if value.dtype == torch.float8_e4m3fn:
            whole = ((part.contiguous().view(torch.uint8) & 0x7F) != 0x7F).all()
        else:
            whole = torch.isfinite(part).all()
        if not bool(whole):
            return False
    return True


def put_plain(target: torch.Tensor, value: torch.Tensor, tensor: str, source: str) -> None:
    """Copy a native or FP8 weight or its scales (already cut for this rank) into its place.

    Raises:
        SparkloomError: other shape, an FP8 weight where none belongs or the reverse, or not finite.
    """
    eight = torch.float8_e4m3fn
    if target.shape != value.shape or (target.dtype == eight) != (value.dtype == eight):
        raise SparkloomError(
            f"{tensor}: {value.dtype} {list(value.shape)} where {target.dtype} {list(target.shape)} belongs",
            file=source,
            field=tensor,
            mend="the checkpoint and its config.json do not fit together: fetch both again",
        )
    if not finite(value):
        raise SparkloomError(
            f"{tensor}: values that are not finite",
            file=source,
            field=tensor,
            mend="fetch the shard that holds it again",
        )
    target.copy_(value)


def cut(value: torch.Tensor, dim: int, start: int, size: int, tensor: str, source: str) -> torch.Tensor:
    """`value.narrow` that says which tensor is too short.

    Raises:
        SparkloomError: the tensor ends before this rank's share does.
    """
    if dim >= value.dim() or start + size > value.shape[dim]:
        raise SparkloomError(
            f"{tensor}: {list(value.shape)} is too small for this rank's share, {start}..{start + size} of "
            f"dimension {dim}",
            file=source,
            field=tensor,
            mend="the checkpoint and its config.json do not fit together: fetch both again",
        )
    return value.narrow(dim, start, size)


def check_marker(codebook: str, value: torch.Tensor, tensor: str, source: str) -> None:
    """A codebook marker must hold the codebook's multiplier.

    Raises:
        SparkloomError: it holds another number: the weights were made with an arithmetic unknown here.
    """
    got = int(value.reshape(-1)[0]) & 0xFFFFFFFF
    if got != MARKERS[codebook]:
        raise SparkloomError(
            f"{tensor}: an unknown codebook multiplier",
            file=source,
            field=tensor,
            value=f"0x{got:08X}",
            mend=f"{codebook} is 0x{MARKERS[codebook]:08X}; fetch the shard that holds it again",
        )


class Seen:
    """Which pieces of a layer have been loaded."""

    def __init__(self, wanted: dict[Any, str]) -> None:
        self.missing = dict(wanted)

    def done(self, key: Any) -> None:
        """Tick one off."""
        self.missing.pop(key, None)

    def check(self, layer: str, source: str) -> None:
        """Every piece must be there.

        Raises:
            SparkloomError: some are not; names the first few.
        """
        if not self.missing:
            return
        names = list(self.missing.values())
        raise SparkloomError(
            f"{layer}: {len(names)} EXL3 tensors were never loaded, the first is {names[0]}",
            file=source,
            field=names[0],
            mend="a shard is missing or its index is wrong: fetch the checkpoint again",
        )


def free(*parameters: torch.nn.Parameter) -> None:
    """Give back the memory of parameters that a back end has made its own copy of."""
    for one in parameters:
        one.data = torch.empty(0, dtype=one.dtype, device=one.device)


def max_tokens() -> int:
    """The most rows of one step, by the configuration that is being built."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return int(config.scheduler_config.max_num_batched_tokens) if config is not None else 8192


def dummy_weights() -> bool:
    """Whether vLLM was told to make up the weights (`--load-format dummy`)."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return config is not None and config.load_config.load_format == "dummy"

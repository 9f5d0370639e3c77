"""Friendly refusals before any launch: each names the tensor and the rule it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkloom.errors import SparkloomError

if TYPE_CHECKING:
    import torch

CODEBOOKS = {"3inst": 0, "mcg": 1, "mul1": 2}
BITS = (2, 3, 4, 5, 6, 8)
BLOCK = 128
ENCODE_BITS = (2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
"""Rates that the encoder's search has; 1 and 1.5 bits need more shared memory than a block may have."""


def fail(name: str, rule: str, value: Any) -> SparkloomError:
    """The error of a tensor that breaks a rule."""
    return SparkloomError(f"EXL3 kernels: {name} {rule}", field=name, value=value)


def codebook(name: str) -> int:
    """The number that the ops take for a codebook's name."""
    if name not in CODEBOOKS:
        raise SparkloomError(
            "EXL3 kernels: no such codebook",
            field="codebook",
            value=name,
            mend="use one of: " + ", ".join(CODEBOOKS),
        )
    return CODEBOOKS[name]


def tensor(
    name: str, t: torch.Tensor, dtype: tuple[torch.dtype, ...], shape: tuple[int, ...] | None = None
) -> None:
    """A contiguous, 16-byte aligned CUDA tensor of one of these dtypes and, if given, this shape."""
    if not t.is_cuda:
        raise fail(name, "must be a CUDA tensor", str(t.device))
    if t.dtype not in dtype:
        raise fail(name, "must be " + " or ".join(str(d).removeprefix("torch.") for d in dtype), str(t.dtype))
    if shape is not None and tuple(t.shape) != shape:
        raise fail(name, f"must have shape {list(shape)}", list(t.shape))
    if not t.is_contiguous():
        raise fail(name, "must be contiguous", list(t.stride()))
    if t.data_ptr() % 16:
        raise fail(name, "must be aligned to 16 bytes", hex(t.data_ptr()))


def trellis(name: str, t: torch.Tensor, stack: int) -> tuple[int, int, int]:
    """A stack of packed matrices with `stack` leading dimensions. Returns (k, n, bits)."""
    import torch

    tensor(name, t, (torch.int16,))
    if t.dim() != stack + 3:
        raise fail(
            name, f"must have {stack + 3} dimensions, ending in [k/16, n/16, 16 * bits]", list(t.shape)
        )
    k, n, words = t.shape[-3] * 16, t.shape[-2] * 16, t.shape[-1]
    if k % BLOCK or n % BLOCK or not k or not n:
        raise fail(name, f"must cover multiples of {BLOCK} in both k and n", [k, n])
    if words % 16 or words // 16 not in BITS:
        raise fail(name, f"must have 16 * bits words in a tile, bits one of {list(BITS)}", words)
    return k, n, words // 16

"""Where the encoder's search runs: numba on the CPU, or the CUDA kernel. Both give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.codebooks import codebook
from sparkloom.exl3.viterbi import WINDOW, Progress

DEVICES = ("auto", "cuda", "cpu")
CHUNK = 16384
"""Tiles that go to the device at a time: 16 MiB."""


def unavailable() -> str | None:
    """Why the CUDA kernel cannot run here, or None. Imports torch only where the library is."""
    from sparkloom.kernels import available, find_library

    if find_library() is None:
        return "the kernel library is not built (kernels/README.md)"
    return available()


def choose(device: str) -> str:
    """`cuda` or `cpu` for what the user asked for.

    Raises:
        SparkloomError: no such device, or `cuda` where it cannot run.
    """
    if device not in DEVICES:
        raise SparkloomError(
            "no such device",
            field="--device",
            value=device,
            mend="use auto, cuda or cpu",
            code=Exit.USAGE,
        )
    if device == "cpu":
        return "cpu"
    reason = unavailable()
    if reason is None:
        return "cuda"
    if device == "auto":
        return "cpu"
    raise SparkloomError(
        f"the encoder cannot run on a GPU here: {reason}",
        field="--device",
        value=device,
        mend="use --device cpu, or build the kernels on a machine with a GPU",
        code=Exit.RESOURCE,
    )


def for_rate(device: str, bits: int | float) -> str:
    """`device`, or `cpu` for a rate that the CUDA kernel lacks."""
    if device != "cuda":
        return device
    from sparkloom.kernels.checks import ENCODE_BITS

    return "cuda" if bits in ENCODE_BITS else "cpu"


def search(
    stream: NDArray[np.float32], bits: int | float, name: str, *, progress: Progress | None = None
) -> NDArray[np.uint16]:
    """Packed tiles for weights, on the first CUDA device.

    Args:
        stream: float32[T, 256], finite, in ring order, scaled to the codebook.
        bits, name: rate and codebook.
        progress: called after every chunk of tiles.

    Returns:
        uint16[T, 16 * bits].
    """
    import torch

    from sparkloom.kernels import ops

    table = torch.from_numpy(codebook(name).astype(np.float16)).cuda()
    parts: list[Any] = []
    for start in range(0, len(stream), CHUNK):
        part = torch.from_numpy(np.ascontiguousarray(stream[start : start + CHUNK], np.float32)).cuda()
        parts.append(ops.encode_tiles(part, bits, table, window=WINDOW).cpu().numpy().view(np.uint16))
        if progress is not None:
            progress(min(start + CHUNK, len(stream)), len(stream))
    whole: NDArray[np.uint16] = np.concatenate(parts)
    return whole

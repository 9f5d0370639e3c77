"""Weight-only FP8 matrices of a checkpoint, by their headers.

A dense matrix is FP8 if its `NAME.weight` is float8 (e4m3). Its scales stand beside it:

| scales | tensor | shape | one scale for |
|---|---|---|---|
| `channel` | `NAME.weight_scale` | float32 [n, 1] | an output channel |
| `block` | `NAME.weight_scale_inv` | float32 [ceil(n/128), ceil(k/128)] | a block of 128 x 128 weights |

The weight is `float(weight) * scale`. Both forms are what public FP8 checkpoints hold; the names are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkloom.errors import SparkloomError

BLOCK = 128
DTYPE = "F8_E4M3"
SCALES = {"channel": "weight_scale", "block": "weight_scale_inv"}


@dataclass(frozen=True)
class Fp8Module:
    """One dense FP8 matrix.

    Args:
        name: its name in the checkpoint.
        k, n: input and output features, whole (before tensor parallelism).
        scales: "channel" or "block".
    """

    name: str
    k: int
    n: int
    scales: str

    @property
    def scale_name(self) -> str:
        """Suffix of the tensor that holds the scales."""
        return SCALES[self.scales]


def scale_shape(n: int, k: int, scales: str) -> tuple[int, int]:
    """Shape of the scales of n x k weights."""
    return (n, 1) if scales == "channel" else (-(-n // BLOCK), -(-k // BLOCK))


def find(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], shard_of: Mapping[str, Path], source: str
) -> dict[str, Fp8Module]:
    """The dense FP8 matrices among checked tensor names, dtypes and shapes; experts are left to vLLM.

    Raises:
        SparkloomError: an FP8 matrix without scales, with both kinds, or with scales of another shape.
    """
    found: dict[str, Fp8Module] = {}
    for name, (dtype, shape) in tensors.items():
        stem, _, suffix = name.rpartition(".")
        if suffix != "weight" or dtype != DTYPE or ".experts." in name or len(shape) != 2:
            continue

        def wrong(summary: str, field: str, where: str = name) -> SparkloomError:
            return SparkloomError(
                f"{field}: {summary}",
                file=shard_of.get(where, source),
                field=field,
                mend="fetch or quantise this tensor again",
            )

        kinds = [kind for kind, tail in SCALES.items() if f"{stem}.{tail}" in tensors]
        if len(kinds) != 1:
            raise wrong(
                "an FP8 matrix with scales of two kinds" if kinds else "an FP8 matrix without scales", name
            )
        scale = f"{stem}.{SCALES[kinds[0]]}"
        kind, want = tensors[scale], scale_shape(*shape, kinds[0])
        if kind[0] not in ("F32", "BF16") or kind[1] not in (
            want,
            want[:1] if kinds[0] == "channel" else want,
        ):
            raise wrong(f"not float32 {list(want)} but {kind[0]} {list(kind[1])}", scale)
        found[stem] = Fp8Module(stem, shape[1], shape[0], kinds[0])
    return found

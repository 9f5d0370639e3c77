"""One EXL3 linear layer: its tensors, what a valid one is, its dense weight and its forward pass.

Convention: `y = x W` with `W` [k, n]; k are the inputs, n the outputs (torch's `nn.Linear` holds W^T).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError
from sparkloom.exl3.codebooks import MARKERS, check_codebook, marker_value
from sparkloom.exl3.hadamard import hadamard
from sparkloom.exl3.rates import BLOCK, TILE, bits_of, check_bits
from sparkloom.exl3.signs import unpack_signs
from sparkloom.exl3.tiles import decode

SUFFIXES = ("trellis", "suh", "svh", "mcg", "mul1", "bias", "su", "sv")
"""Every suffix that a tensor of an EXL3 linear may have in a checkpoint."""


@dataclass(frozen=True, eq=False)
class Linear:
    """An EXL3 linear layer.

    Attributes:
        trellis: int16[k / 16, n / 16, 16 * bits], packed tiles.
        suh: float16[k], signed input scales, applied before the input Hadamard transform.
        svh: float16[n], signed output scales, applied after the output Hadamard transform.
        codebook: `3inst`, `mcg` or `mul1`.
        bias: float16[n], added last, or None.

    Raises:
        SparkloomError: shapes, dtypes, rate and codebook do not fit together.
    """

    trellis: NDArray[np.int16]
    suh: NDArray[np.float16]
    svh: NDArray[np.float16]
    codebook: str
    bias: NDArray[np.float16] | None = None

    def __post_init__(self) -> None:
        for field, dtype, ndim in (("trellis", np.int16, 3), ("suh", np.float16, 1), ("svh", np.float16, 1)):
            _check_array(field, getattr(self, field), dtype, ndim)
        check_bits(self.bits, check_codebook(self.codebook))
        for axis, size in (("k", self.k), ("n", self.n)):
            if size % BLOCK or not size:
                raise SparkloomError(
                    f"{axis} of an EXL3 linear must be a multiple of {BLOCK}",
                    field="trellis.shape",
                    value=list(self.trellis.shape),
                )
        self._check_length("suh", self.k)
        self._check_length("svh", self.n)
        if self.bias is not None:
            _check_array("bias", self.bias, np.float16, 1)
            self._check_length("bias", self.n)

    def _check_length(self, field: str, length: int) -> None:
        shape = getattr(self, field).shape
        if shape != (length,):
            raise SparkloomError(
                f"{field} must have {length} values to fit the trellis {list(self.trellis.shape)}",
                field=f"{field}.shape",
                value=list(shape),
            )

    @property
    def k(self) -> int:
        """Number of inputs."""
        return int(self.trellis.shape[0]) * TILE

    @property
    def n(self) -> int:
        """Number of outputs."""
        return int(self.trellis.shape[1]) * TILE

    @property
    def bits(self) -> int | float:
        """Bits per weight of the trellis (a float for half rates)."""
        return bits_of(self.trellis.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        arrays = (self.trellis, self.suh, self.svh, self.bias)
        return sum(a.nbytes for a in arrays if a is not None) + (4 if self.codebook in MARKERS else 0)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The tensors of a checkpoint by suffix; scalars are zero-dimensional int32."""
        out: dict[str, NDArray[Any]] = {"trellis": self.trellis, "suh": self.suh, "svh": self.svh}
        if self.codebook in MARKERS:
            out[self.codebook] = np.array(marker_value(self.codebook), np.int32)
        if self.bias is not None:
            out["bias"] = self.bias
        return out

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], name: str = "") -> Linear:
        """Build a linear from a checkpoint's tensors by suffix (see `SUFFIXES`).

        Old files hold packed signs `su`, `sv` instead of the scales `suh`, `svh`; both are read.

        Args:
            tensors: suffix to array.
            name: the module's name, for error messages.

        Raises:
            SparkloomError: a tensor is missing, contradicts another or has a wrong shape; names the tensor.
        """
        prefix = f"{name}." if name else ""
        try:
            trellis = np.asarray(_need(tensors, "trellis"))
            bias = tensors.get("bias")
            return cls(
                trellis=trellis.view(np.int16) if trellis.dtype == np.uint16 else trellis,
                suh=_scales(tensors, "suh", "su"),
                svh=_scales(tensors, "svh", "sv"),
                codebook=codebook_of(tensors),
                bias=None if bias is None else np.asarray(bias).astype(np.float16),
            )
        except SparkloomError as error:
            raise SparkloomError(
                f"{error.summary} (linear {name})" if name else error.summary,
                field=f"{prefix}{error.field}" if error.field else name or None,
                value=error.value,
                mend=error.mend or "the checkpoint is damaged or no EXL3: fetch it again",
                code=error.code,
            ) from None


def _check_array(field: str, array: Any, dtype: Any, ndim: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
        found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise SparkloomError(
            f"{field} must be {np.dtype(dtype)} with {ndim} dimensions", field=field, value=found
        )


def _need(tensors: Mapping[str, NDArray[Any]], suffix: str) -> NDArray[Any]:
    if suffix not in tensors:
        raise SparkloomError(f"the tensor .{suffix} is missing", field=suffix)
    return tensors[suffix]


def _scales(tensors: Mapping[str, NDArray[Any]], suffix: str, signs: str) -> NDArray[np.float16]:
    if suffix in tensors:
        return np.asarray(tensors[suffix])
    if signs in tensors:
        return unpack_signs(np.asarray(tensors[signs]))
    return _need(tensors, suffix)


def codebook_of(tensors: Mapping[str, NDArray[Any]]) -> str:
    """The codebook that the marker tensors select.

    Raises:
        SparkloomError: both markers, or a marker with another value than its multiplier.
    """
    found = [name for name in MARKERS if name in tensors]
    if len(found) > 1:
        raise SparkloomError(
            "both markers .mcg and .mul1 are there, so the codebook is undecided", field="mul1"
        )
    for name in found:
        marker = np.asarray(tensors[name])
        value = int(marker.reshape(-1)[0]) if marker.size == 1 and marker.dtype.kind in "iu" else None
        if value is None or value & 0xFFFFFFFF != MARKERS[name]:
            raise SparkloomError(
                f"the marker .{name} must be the int32 scalar {marker_value(name)}",
                field=name,
                value=value if value is not None else f"{marker.dtype}{list(marker.shape)}",
            )
    return found[0] if found else "3inst"


def dense_weight(linear: Linear) -> NDArray[np.float32]:
    """float32[k, n]: the weight in the original basis, diag(suh) H W H diag(svh), without the bias."""
    rotated = decode(linear.trellis, linear.codebook).astype(np.float32)
    inputs = hadamard(rotated, axis=0)
    inputs *= linear.suh.astype(np.float32)[:, None]
    weight = hadamard(inputs, axis=1)
    weight *= linear.svh.astype(np.float32)
    return weight


def forward(linear: Linear, x: NDArray[Any]) -> NDArray[np.float32]:
    """`x W + bias` in the stages and with the rounding points of the kernels' contract.

    fp16 input scale (rounded), fp32 Hadamard rounded to fp16, fp16 x fp16 product summed in fp32,
    then output Hadamard, output scale and bias in fp32.

    Args:
        linear: the layer.
        x: [..., k], taken as fp16.

    Returns:
        float32[..., n].

    Raises:
        SparkloomError: the last dimension of x is not k.
    """
    x = np.asarray(x)
    if x.shape[-1:] != (linear.k,):
        raise SparkloomError(f"x must have {linear.k} channels", field="x.shape", value=list(x.shape))
    flat = x.reshape(-1, linear.k).astype(np.float16)
    scaled = flat * linear.suh  # fp16 product, rounded
    rotated = hadamard(scaled.astype(np.float32)).astype(np.float16).astype(np.float32)
    product = rotated @ decode(linear.trellis, linear.codebook).astype(np.float32)
    out = hadamard(product) * linear.svh.astype(np.float32)
    if linear.bias is not None:
        out += linear.bias.astype(np.float32)
    result: NDArray[np.float32] = out.reshape(*x.shape[:-1], linear.n)
    return result

"""Computes with weight-only FP8 matrices: activations keep their type, weights are e4m3 with scales.

On a GPU this is vLLM's own Marlin kernel (16-bit activations, 8-bit weights, any capability from 7.5 up), not
the W8A8 path, which would round activations to FP8 as well. Anywhere else, and for float32, the weight is
decoded on each use. Marlin holds scales in the activations' type; the project's quantiser writes scales that
bfloat16 holds exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from vllm.logger import init_logger

from sparkloom.vllm.fp8_headers import BLOCK, SCALES

logger = init_logger("vllm.sparkloom.exl3")


@dataclass(frozen=True)
class Fp8Spec:
    """FP8 rows of one linear layer on one rank.

    Args:
        layer: vLLM's name of the layer.
        k, n: input and output features on this rank.
        scales: "channel" or "block".
        dtype: element type of `x` and of the result.
    """

    layer: str
    k: int
    n: int
    scales: str
    dtype: torch.dtype


def decode(weight: torch.Tensor, scale: torch.Tensor, scales: str) -> torch.Tensor:
    """float32 [n, k] of e4m3 [n, k] and its scales, float32 [n, 1] or [ceil(n/128), ceil(k/128)]."""
    if scales == "block":
        n, k = weight.shape
        scale = scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return weight.float() * scale


class Fp8Kernel(ABC):
    """Runs FP8 rows of one linear layer."""

    @abstractmethod
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., k] -> [..., n], without bias."""


class DecodedFp8(Fp8Kernel):
    """Decodes on each use."""

    def __init__(self, spec: Fp8Spec, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self.spec, self.weight, self.scale = spec, weight, scale

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Fp8Kernel.apply`."""
        return F.linear(x, decode(self.weight, self.scale, self.spec.scales).to(x.dtype))


class MarlinFp8(Fp8Kernel):
    """vLLM's Marlin kernel; repacks the weight into its own order."""

    def __init__(self, spec: Fp8Spec, weight: torch.Tensor, scale: torch.Tensor) -> None:
        from vllm.model_executor.layers.quantization.utils import marlin_utils, marlin_utils_fp8

        self.spec, self.run = spec, marlin_utils_fp8.apply_fp8_marlin_linear
        self.workspace = marlin_utils.marlin_make_workspace_new(weight.device)
        holder: Any = torch.nn.Module()
        holder.output_size_per_partition, holder.input_size_per_partition = spec.n, spec.k
        holder.orig_dtype = spec.dtype
        holder.weight = torch.nn.Parameter(weight, requires_grad=False)
        name = SCALES[spec.scales]
        if spec.scales == "block":
            holder.weight_block_size = [BLOCK, BLOCK]
        setattr(holder, name, torch.nn.Parameter(scale, requires_grad=False))
        marlin_utils_fp8.prepare_fp8_layer_for_marlin(holder, size_k_first=False)
        self.weight, self.scale = holder.weight, getattr(holder, name)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Fp8Kernel.apply`."""
        out: torch.Tensor = self.run(
            input=x,
            weight=self.weight,
            weight_scale=self.scale,
            workspace=self.workspace,
            size_n=self.spec.n,
            size_k=self.spec.k,
            bias=None,
        )
        return out


def build(spec: Fp8Spec, weight: torch.Tensor, scale: torch.Tensor) -> Fp8Kernel:
    """The kernel of some rows; it keeps `weight` and `scale` or its own form of them.

    Args:
        weight: float8_e4m3fn [n, k].
        scale: float32, see `decode`.
    """
    if weight.is_cuda and spec.dtype in (torch.float16, torch.bfloat16):
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp8 import is_fp8_marlin_supported

        if is_fp8_marlin_supported():
            logger.info_once("FP8 dense layers: weight-only, Marlin")
            return MarlinFp8(spec, weight, scale)
    logger.info_once("FP8 dense layers: weight-only, decoded on each use")
    return DecodedFp8(spec, weight, scale)

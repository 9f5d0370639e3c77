"""What a back end gets from the plug-in and what it gives back.

A back end is a class with the name that users write in `SPARKLOOM_EXL3_BACKEND`. The plug-in chooses one
per layer (`sparkloom.vllm.backends.select`), after the layer's weights are loaded and checked:

1. `Backend.unavailable(device)` and `Backend.refuses(spec)` say why it cannot serve; `auto` then tries the
   next, an explicitly named back end makes the start fail with that reason.
2. `Backend.experts(spec, tensors)` or `.linear(spec, tensors)` builds the layer's kernel object.
3. `Kernel.prepare()` runs once, from vLLM's `process_weights_after_loading`: allocate all scratch, build
   pointer tables, warm up. vLLM's memory profiling comes later, so what is allocated here is taken off the
   KV budget.
4. `apply` runs in every step, on the current stream, possibly under CUDA graph capture: no allocation that
   must outlive the call, no host synchronisation, no branch on values (only on shapes). vLLM may run the
   shared expert on another stream meanwhile: share scratch with nobody but other layers' `apply`.

Layout of the tensors is the checkpoint's own, cut for this rank, never repacked by the plug-in; a back end
that wants another order makes it in `prepare()`, lets go of the trellis and sets `packed = False`: the
plug-in then frees the layer's own trellis parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True)
class ExpertsSpec:
    """One MoE layer on one rank.

    Args:
        layer: vLLM's name of the layer.
        experts: E, experts held by this rank (all of them unless expert parallelism is on).
        hidden: H. A multiple of 128.
        intermediate: I, this rank's share of the experts' intermediate size. A multiple of 128.
        top_k: experts per token.
        max_tokens: the most rows that one `apply` gets.
        bits13, bits2: bits per weight of gate/up and of down (1 to 8, or 1.5, 2.5, 3.5 with mul1).
        codebook: "3inst", "mcg" or "mul1".
        swiglu_limit: None, or the clamp: `silu(min(gate, limit)) * clamp(up, -limit, limit)`.
        dtype: element type of `x` and of the result.
        shared_suh: gate and up have the same input scales in every expert, so one input Hadamard serves both.
        rank, world: place in the tensor-parallel group, for messages.
    """

    layer: str
    experts: int
    hidden: int
    intermediate: int
    top_k: int
    max_tokens: int
    bits13: float
    bits2: float
    codebook: str
    swiglu_limit: float | None
    dtype: torch.dtype
    shared_suh: bool
    rank: int = 0
    world: int = 1


@dataclass(frozen=True)
class ExpertsTensors:
    """Weights of one MoE layer on one rank; contiguous, all on one device. K = bits.

    `w13_*` hold gate at index 0 and up at index 1 of their second dimension.

    | field | dtype | shape |
    |---|---|---|
    | w13_trellis | int16 | [E, 2, H/16, I/16, 16*K13] |
    | w13_suh | float16 | [E, 2, H] |
    | w13_svh | float16 | [E, 2, I] |
    | w2_trellis | int16 | [E, I/16, H/16, 16*K2] |
    | w2_suh | float16 | [E, I] |
    | w2_svh | float16 | [E, H] |
    | expert_map | int32 | [global experts], -1 = another rank's; None if all experts are here |
    """

    w13_trellis: torch.Tensor
    w13_suh: torch.Tensor
    w13_svh: torch.Tensor
    w2_trellis: torch.Tensor
    w2_suh: torch.Tensor
    w2_svh: torch.Tensor
    expert_map: torch.Tensor | None = None


@dataclass(frozen=True)
class LinearSpec:
    """One dense linear layer on one rank: one or more logical matrices that share the input (q/k/v, gate/up).

    Args:
        layer: vLLM's name of the layer.
        k: input features on this rank, a multiple of 128.
        n: output features of each logical matrix on this rank, multiples of 128.
        bits, codebooks: per logical matrix.
        max_tokens: the most rows that one `apply` gets.
        dtype: element type of `x` and of the result.
    """

    layer: str
    k: int
    n: tuple[int, ...]
    bits: tuple[float, ...]
    codebooks: tuple[str, ...]
    max_tokens: int
    dtype: torch.dtype


@dataclass(frozen=True)
class LinearTensors:
    """Weights of one dense linear layer: per logical matrix trellis int16 [k/16, n/16, 16*K], suh float16
    [k], svh float16 [n]."""

    trellis: tuple[torch.Tensor, ...]
    suh: tuple[torch.Tensor, ...]
    svh: tuple[torch.Tensor, ...]


class ExpertsKernel(ABC):
    """Runs one layer's routed experts.

    `packed` tells whether the tensors' trellis is still needed after `prepare()`.
    """

    packed = True

    def prepare(self) -> None:  # noqa: B027  a back end without scratch needs none
        """Allocate scratch and warm up; called once, before vLLM measures memory."""

    @abstractmethod
    def apply(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """This rank's partial sum over the chosen experts; vLLM reduces over the ranks.

        Args:
            x: [T, H], `spec.dtype`.
            weights: [T, top_k] float32, with every scaling factor in.
            ids: [T, top_k] int32 or int64, global expert numbers.

        Returns:
            [T, H], `spec.dtype`, sum over k of weights * expert(x).
        """


class LinearKernel(ABC):
    """Runs one dense linear layer.

    `packed` tells whether the tensors' trellis is still needed after `prepare()`.
    """

    packed = True

    def prepare(self) -> None:  # noqa: B027
        """Allocate scratch and warm up; called once, before vLLM measures memory."""

    @abstractmethod
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., k] -> [..., sum(n)], the logical matrices' results side by side, without bias."""


class Backend(ABC):
    """A way to compute with EXL3 weights."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """Why this back end cannot run on `device` here, or None. Must not create a device context."""

    @classmethod
    def refuses(cls, spec: ExpertsSpec | LinearSpec) -> str | None:
        """Why it cannot run this layer (rate, codebook, shape, dtype), or None."""
        return None

    @abstractmethod
    def experts(self, spec: ExpertsSpec, tensors: ExpertsTensors) -> ExpertsKernel:
        """Build the kernel object of one MoE layer."""

    @abstractmethod
    def linear(self, spec: LinearSpec, tensors: LinearTensors) -> LinearKernel:
        """Build the kernel object of one dense linear layer."""

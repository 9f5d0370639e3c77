"""The back end on the `exllamav3` package, for comparison and as a way out; never chosen by `auto`.

It uses the package's linear layer as it is (1.6 and later), one object per expert matrix, and walks over the
chosen experts on the host. So it cannot be captured into a CUDA graph: use `--enforce-eager` with it. The
package compiles its extension at the first import, which takes minutes and needs nvcc.
"""

from __future__ import annotations

import importlib.util
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from sparkloom.vllm.backends.base import (
    Backend,
    ExpertsKernel,
    ExpertsSpec,
    ExpertsTensors,
    LinearKernel,
    LinearSpec,
    LinearTensors,
)

MARKERS = {"mcg": 0xCBAC1FED - (1 << 32), "mul1": 0x83DCD12D - (1 << 32)}


def linear(trellis: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor, codebook: str) -> Any:
    """The package's linear layer over one matrix, float32 out."""
    from exllamav3.modules.quant.exl3 import LinearEXL3  # type: ignore[import-not-found]

    marker = {}
    if codebook in MARKERS:
        marker[codebook] = torch.tensor(MARKERS[codebook], dtype=torch.int32, device=trellis.device)
    return LinearEXL3(
        None, suh.numel(), svh.numel(), suh=suh, svh=svh, trellis=trellis, out_dtype=torch.float32, **marker
    )


class ExLlamaExperts(ExpertsKernel):
    """Routed experts of one layer."""

    def __init__(self, spec: ExpertsSpec, tensors: ExpertsTensors) -> None:
        self.spec, self.map = spec, tensors.expert_map
        w, code = tensors, spec.codebook
        self.experts = [
            (
                linear(w.w13_trellis[e, 0], w.w13_suh[e, 0], w.w13_svh[e, 0], code),
                linear(w.w13_trellis[e, 1], w.w13_suh[e, 1], w.w13_svh[e, 1], code),
                linear(w.w2_trellis[e], w.w2_suh[e], w.w2_svh[e], code),
            )
            for e in range(spec.experts)
        ]

    def apply(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """See `ExpertsKernel.apply`; synchronises with the host."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        local = ids if self.map is None else self.map[ids.long()]
        limit = self.spec.swiglu_limit
        for e in local.unique().tolist():
            if e < 0:
                continue
            token, slot = (local == e).nonzero(as_tuple=True)
            rows = x[token].half().contiguous()
            gate, up = (layer.forward(rows, {}) for layer in self.experts[e][:2])
            if limit is not None:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            y = self.experts[e][2].forward((F.silu(gate) * up).half().contiguous(), {})
            out.index_add_(0, token, y.float() * weights[token, slot, None].float())
        return out.to(x.dtype)


class ExLlamaLinear(LinearKernel):
    """One dense layer."""

    def __init__(self, spec: LinearSpec, tensors: LinearTensors) -> None:
        parts = zip(tensors.trellis, tensors.suh, tensors.svh, spec.codebooks, strict=True)
        self.k, self.parts = spec.k, [linear(*part) for part in parts]

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `LinearKernel.apply`."""
        rows = x.reshape(-1, self.k).half().contiguous()
        y = torch.cat([part.forward(rows, {}) for part in self.parts], -1).to(x.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])


class ExLlamaBackend(Backend):
    """The exllamav3 package."""

    name: ClassVar[str] = "exllamav3"

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """No CUDA device, or the package is not installed."""
        if device.type != "cuda":
            return f"it needs a CUDA device, this is {device.type}"
        return None if importlib.util.find_spec("exllamav3") else "the package exllamav3 is not installed"

    @classmethod
    def refuses(cls, spec: ExpertsSpec | LinearSpec) -> str | None:
        """Sizes that are no multiples of 128."""
        sizes = (spec.hidden, spec.intermediate) if isinstance(spec, ExpertsSpec) else (spec.k, *spec.n)
        wrong = [size for size in sizes if size % 128]
        return f"sizes must be multiples of 128, not {wrong[0]}" if wrong else None

    def experts(self, spec: ExpertsSpec, tensors: ExpertsTensors) -> ExpertsKernel:
        """See `Backend.experts`."""
        return ExLlamaExperts(spec, tensors)

    def linear(self, spec: LinearSpec, tensors: LinearTensors) -> LinearKernel:
        """See `Backend.linear`."""
        return ExLlamaLinear(spec, tensors)

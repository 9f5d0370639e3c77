"""The back end on the project's own CUDA kernels (`kernels/`, `torch.ops.sparkloom_exl3.*`).

The path is chosen by the number of rows alone: up to 64 the decode kernels, above that the prefill kernel.
All scratch is allocated in `prepare()`, one piece for all layers' experts and one for all dense layers (a
shared expert may run on another stream beside the routed ones). Nothing synchronises with the host, so CUDA
graphs capture it and replay it with other routing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar
from weakref import WeakValueDictionary

import torch
from vllm.logger import init_logger

from sparkloom.errors import SparkloomError
from sparkloom.kernels import available, checks, ops
from sparkloom.kernels.loader import find_library, load
from sparkloom.vllm.backends.base import (
    Backend,
    ExpertsKernel,
    ExpertsSpec,
    ExpertsTensors,
    LinearKernel,
    LinearSpec,
    LinearTensors,
)

logger = init_logger("vllm.sparkloom.exl3")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass
class Scratch:
    """One device's scratch for one kind of layer; grows until the last layer is prepared."""

    tensor: torch.Tensor

    def grow(self, size: int) -> None:
        """Make room for `size` bytes."""
        if self.tensor.numel() < size:
            self.tensor = torch.empty(size, dtype=torch.uint8, device=self.tensor.device)


@cache
def scratch(kind: str, device: torch.device) -> Scratch:
    """The scratch that all layers of a kind share on a device."""
    return Scratch(torch.empty(0, dtype=torch.uint8, device=device))


@cache
def announce(device: torch.device) -> None:
    """Say once which kernels run."""
    logger.info("EXL3 back end: cuda (own kernels) on %s, %s", device, find_library())


class CudaExperts(ExpertsKernel):
    """Routed experts of one layer."""

    def __init__(self, spec: ExpertsSpec, tensors: ExpertsTensors) -> None:
        self.spec, self.expert_map = spec, tensors.expert_map
        if self.expert_map is not None:
            self.expert_map = self.expert_map.int().contiguous()
        self.weights = ops.Experts(
            tensors.w13_trellis,
            tensors.w13_suh,
            tensors.w13_svh,
            tensors.w2_trellis,
            tensors.w2_suh,
            tensors.w2_svh,
            spec.codebook,
            spec.codebook,
            spec.swiglu_limit,
            spec.shared_suh,
        )
        self.code = checks.codebook(spec.codebook)
        self.limit = spec.swiglu_limit or 0.0
        self.device = tensors.w13_trellis.device
        self.scratch = scratch("experts", self.device)

    def prepare(self) -> None:
        """Room for the largest step; one call of each path, as a graph capture must meet no lazy loading."""
        announce(self.device)
        self.scratch.grow(self.weights.workspace_bytes(self.spec.max_tokens, self.spec.top_k))
        for rows in {1, min(9, self.spec.max_tokens), min(ops.DECODE_ROWS + 1, self.spec.max_tokens)}:
            x = torch.zeros(rows, self.spec.hidden, dtype=self.spec.dtype, device=self.device)
            ids = torch.zeros(rows, self.spec.top_k, dtype=torch.int32, device=self.device)
            self.apply(x, torch.zeros(ids.shape, device=self.device), ids)

    def apply(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """See `ExpertsKernel.apply`."""
        x = x.contiguous()
        out = torch.empty_like(x)
        w = self.weights
        torch.ops.sparkloom_exl3.moe(
            x,
            w.w13_trellis,
            w.w13_suh,
            w.w13_svh,
            w.w2_trellis,
            w.w2_suh,
            w.w2_svh,
            weights.float().contiguous(),
            ids.int().contiguous(),
            self.expert_map,
            self.scratch.tensor,
            out,
            self.code,
            self.code,
            self.limit,
            bool(w.shared_suh),
            0,
        )
        return out


_dense: WeakValueDictionary[str, CudaLinear] = WeakValueDictionary()


def exl3_dense(x: torch.Tensor, layer: str, width: int) -> torch.Tensor:
    """A dense layer by its name: one opaque node in a graph of torch.compile, which need not see the scratch.

    vLLM's compiled graphs outlive a process, so they must not hold numbers or pointers.
    """
    return _dense[layer].run(x)


def _exl3_dense_fake(x: torch.Tensor, layer: str, width: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], width)


torch.library.custom_op(
    "sparkloom::exl3_dense", exl3_dense, mutates_args=(), schema="(Tensor x, str layer, int width) -> Tensor"
)
torch.library.register_fake("sparkloom::exl3_dense", _exl3_dense_fake)


class CudaLinear(LinearKernel):
    """One dense layer: its logical matrices write side by side into one result."""

    def __init__(self, spec: LinearSpec, tensors: LinearTensors) -> None:
        self.spec, self.tensors = spec, tensors
        self.name, self.width = spec.layer, sum(spec.n)
        _dense[self.name] = self
        for index, trellis in enumerate(tensors.trellis):
            k, n, _ = checks.trellis(f"{spec.layer}.trellis[{index}]", trellis, 0)
            if (k, n) != (spec.k, spec.n[index]):
                raise checks.fail(
                    f"{spec.layer}.trellis[{index}]", f"must be {spec.k} x {spec.n[index]}", [k, n]
                )
        self.codes = [checks.codebook(name) for name in spec.codebooks]
        self.device = tensors.trellis[0].device
        self.scratch = scratch("linear", self.device)

    def prepare(self) -> None:
        """Room for the largest step, and one call of each path."""
        announce(self.device)
        self.scratch.grow(
            max(ops.linear_workspace_bytes(self.spec.max_tokens, self.spec.k, n) for n in self.spec.n)
        )
        for rows in {1, min(ops.DECODE_ROWS + 1, self.spec.max_tokens)}:
            self.apply(torch.zeros(rows, self.spec.k, dtype=self.spec.dtype, device=self.device))

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `LinearKernel.apply`."""
        if torch.compiler.is_compiling():
            compiled: torch.Tensor = torch.ops.sparkloom.exl3_dense(x, self.name, self.width)
            return compiled
        return self.run(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """`apply`, eagerly."""
        rows = x.reshape(-1, self.spec.k).contiguous()
        out = torch.empty(len(rows), self.width, dtype=x.dtype, device=x.device)
        parts = zip(self.tensors.trellis, self.tensors.suh, self.tensors.svh, self.codes, strict=True)
        at = 0
        for trellis, suh, svh, code in parts:
            n = svh.shape[0]
            torch.ops.sparkloom_exl3.linear(
                rows, trellis, suh, svh, None, self.scratch.tensor, out[:, at : at + n], code, 0
            )
            at += n
        return out.view(*x.shape[:-1], out.shape[-1])


class CudaBackend(Backend):
    """Own kernels on CUDA, compute capability 8.0 and later where the library was built for it."""

    name: ClassVar[str] = "cuda"

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """No CUDA device, no library, or one that torch refuses."""
        if device.type != "cuda":
            return f"it needs a CUDA device, this is {device.type}"
        reason = available()
        if reason is None:
            try:
                load()
            except SparkloomError as error:
                return f"{error.summary}: {error.detail}"
        return reason

    @classmethod
    def refuses(cls, spec: ExpertsSpec | LinearSpec) -> str | None:
        """Rates other than whole 2, 3, 4, 5, 6, 8 and sizes that are no multiples of 128."""
        bits: tuple[float, ...]
        books: tuple[str, ...]
        sizes: tuple[int, ...]
        if isinstance(spec, ExpertsSpec):
            bits, books = (spec.bits13, spec.bits2), (spec.codebook,)
            sizes = (spec.hidden, spec.intermediate)
            if spec.experts > 1024:
                return f"it takes at most 1024 experts, not {spec.experts}"
        else:
            bits, books, sizes = spec.bits, spec.codebooks, (spec.k, *spec.n)
        if odd := [b for b in bits if b not in checks.BITS]:
            return f"it has no kernel for {odd[0]} bits per weight"
        if unknown := [b for b in books if b not in checks.CODEBOOKS]:
            return f"it does not know the codebook {unknown[0]}"
        if wrong := [s for s in sizes if s % checks.BLOCK]:
            return f"sizes must be multiples of {checks.BLOCK}, not {wrong[0]}"
        return None if spec.dtype in DTYPES else f"it does not compute in {spec.dtype}"

    def experts(self, spec: ExpertsSpec, tensors: ExpertsTensors) -> ExpertsKernel:
        """See `Backend.experts`."""
        return CudaExperts(spec, tensors)

    def linear(self, spec: LinearSpec, tensors: LinearTensors) -> LinearKernel:
        """See `Backend.linear`."""
        return CudaLinear(spec, tensors)

"""EXL3 dense linears in vLLM (MLPs, shared experts, attention projections where the model passes a quant
config).

A fused layer (q/k/v, gate/up) keeps its logical matrices apart: each has input scales, a rate and a
codebook of its own. Column parallelism cuts trellis dimension 1 and svh, row parallelism trellis dimension
0 and suh.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, RowParallelLinear

from sparkloom.errors import SparkloomError
from sparkloom.vllm import backends
from sparkloom.vllm.backends.base import LinearKernel, LinearSpec, LinearTensors
from sparkloom.vllm.checkpoint import MARKERS, Module
from sparkloom.vllm.loading import (
    TILE,
    Seen,
    check_marker,
    cut,
    divisible,
    dummy_weights,
    free,
    max_tokens,
    parameter,
    put,
)


class Exl3LinearMethod(LinearMethodBase):  # type: ignore[misc]
    """The method of one linear layer.

    Args:
        matrices: the checkpoint's EXL3 modules behind it, in the order of vLLM's output partitions.
        source: where the checkpoint is, for messages.
    """

    def __init__(self, matrices: list[Module], source: str) -> None:
        self.matrices, self.source = matrices, source
        self.kernel: LinearKernel | None = None

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register packed parameters, one flat trellis for all logical matrices (their rates may differ)."""
        self.k, self.n = input_size_per_partition, list(output_partition_sizes)
        self.rows = isinstance(layer, RowParallelLinear)
        self.rank, self.world = getattr(layer, "tp_rank", 0), getattr(layer, "tp_size", 1)
        self.dtype, self.max_tokens, self.dummy = params_dtype, max_tokens(), dummy_weights()
        self.check_layer(layer, input_size)
        self.words = [round(16 * module.bits) for module in self.matrices]
        sizes = [self.k // TILE * (n // TILE) * w for n, w in zip(self.n, self.words, strict=True)]
        self.offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        parameter(layer, "trellis", (self.offsets[-1],), torch.int16, self.loader("trellis"))
        parameter(layer, "suh", (len(self.n), self.k), torch.float16, self.loader("suh"))
        parameter(layer, "svh", (sum(self.n),), torch.float16, self.loader("svh"))
        wanted = {
            (kind, i): f"{m.name}.{kind}"
            for i, m in enumerate(self.matrices)
            for kind in ("trellis", "suh", "svh", *([m.codebook] if m.codebook in MARKERS else []))
        }
        for mark in MARKERS:
            if any(module.codebook == mark for module in self.matrices):
                parameter(layer, mark, (len(self.n),), torch.int32, self.loader(mark))
        self.seen = Seen(wanted)

    def check_layer(self, layer: torch.nn.Module, input_size: int) -> None:
        """The layer's shape must fit the checkpoint's, and every share must be a multiple of 128.

        Raises:
            SparkloomError: it does not; names the tensor.
        """
        if len(self.matrices) != len(self.n):
            raise SparkloomError(
                f"{layer.prefix}: {len(self.n)} matrices in vLLM, {len(self.matrices)} in the checkpoint",
                file=self.source,
                field=self.matrices[0].name,
                mend="serve this model from native weights",
            )
        for module in self.matrices:
            if module.k != input_size:
                raise SparkloomError(
                    f"{module.name}: {module.k} inputs in the checkpoint, {input_size} by config.json",
                    file=self.source,
                    field=f"{module.name}.trellis",
                    mend="the checkpoint and its config.json do not fit together: fetch both again",
                )
        ranks = self.world if self.rows else 1
        divisible(f"{self.matrices[0].name}.trellis", "an input size", input_size, ranks, self.source)
        for module, n in zip(self.matrices, self.n, strict=True):
            world = max(module.n // n, 1)
            if self.rows and module.n != n:
                raise SparkloomError(
                    f"{module.name}: {module.n} outputs in the checkpoint, {n} by config.json",
                    file=self.source,
                    field=f"{module.name}.trellis",
                    mend="the checkpoint and its config.json do not fit together: fetch both again",
                )
            divisible(f"{module.name}.trellis", "an output size", module.n, world, self.source)

    def loader(self, kind: str) -> Any:
        """The loader of one parameter; called once per logical matrix."""

        def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, shard_id: Any = None) -> None:
            i = {"q": 0, "k": 1, "v": 2, None: 0}.get(shard_id, shard_id)
            module, n, value = self.matrices[i], self.n[i], loaded_weight
            tensor = f"{module.name}.{kind}"
            if kind in MARKERS:
                check_marker(kind, value, tensor, self.source)
                put(param.data[i], value.reshape(()).to(torch.int32), tensor, self.source)
                self.seen.done((kind, i))
                return
            unit = TILE if kind == "trellis" else 1
            if self.rows and kind != "svh":
                value = cut(value, 0, self.rank * self.k // unit, self.k // unit, tensor, self.source)
            elif not self.rows and kind != "suh":
                parts = max(module.n // n, 1)  # fewer than ranks where key/value heads are replicated
                start = self.rank * parts // self.world * n
                value = cut(value, int(kind == "trellis"), start // unit, n // unit, tensor, self.source)
            put(self.piece(param.data, kind, i), value, tensor, self.source)
            self.seen.done((kind, i))

        return load

    def piece(self, data: torch.Tensor, kind: str, i: int) -> torch.Tensor:
        """The part of a parameter that belongs to logical matrix `i`."""
        n, start = self.n[i], sum(self.n[:i])
        if kind == "trellis":
            return data[self.offsets[i] : self.offsets[i + 1]].view(self.k // TILE, n // TILE, self.words[i])
        return data[i] if kind == "suh" else data[start : start + n]

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check that all arrived, choose a back end, let it prepare."""
        if self.kernel is not None:
            return
        if not self.dummy:
            self.seen.check(layer.prefix, self.source)
        for mark in MARKERS:
            if hasattr(layer, mark):
                delattr(layer, mark)
        parts = {
            kind: tuple(self.piece(getattr(layer, kind).data, kind, i) for i in range(len(self.n)))
            for kind in ("trellis", "suh", "svh")
        }
        spec = LinearSpec(
            layer=layer.prefix,
            k=self.k,
            n=tuple(self.n),
            bits=tuple(module.bits for module in self.matrices),
            codebooks=tuple(module.codebook for module in self.matrices),
            max_tokens=self.max_tokens,
            dtype=self.dtype,
        )
        self.kernel = backends.select(spec, layer.trellis.device)().linear(spec, LinearTensors(**parts))
        self.kernel.prepare()
        if not self.kernel.packed:
            del parts
            free(layer.trellis)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., k] -> [..., sum(n)], plus the bias."""
        assert self.kernel is not None, "process_weights_after_loading has not run"
        y = self.kernel.apply(x)
        return y if bias is None else y + bias

"""Dense linears in vLLM whose matrices are EXL3 or weight-only FP8 (MLPs, shared experts, attention, heads).

A fused layer (q/k/v, gate/up, GLM-5.3's merged KDA and MLA inputs) keeps its logical matrices apart: each has
input scales, a rate and a codebook of its own, and where the layer allows it each may be EXL3, FP8 or native.
Neighbours of one kind make a run, which one kernel computes; the runs' results stand side by side. Column
parallelism cuts trellis dimension 1 and svh, row parallelism trellis dimension 0 and suh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.linear import LinearMethodBase, RowParallelLinear, UnquantizedLinearMethod

from sparkloom.errors import SparkloomError
from sparkloom.vllm import backends, fp8
from sparkloom.vllm.backends.base import LinearKernel, LinearSpec, LinearTensors
from sparkloom.vllm.backends.reference import dense
from sparkloom.vllm.checkpoint import MARKERS, Module
from sparkloom.vllm.fp8_headers import BLOCK, SCALES, Fp8Module, scale_shape
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
    put_plain,
)

Part = Module | Fp8Module | str
"""A logical matrix: EXL3, FP8, or the name of a native one."""
Apply = Callable[[torch.Tensor], torch.Tensor]

# Per tensor: dimension and unit that row parallelism cuts, then those that column parallelism cuts.
AXES: dict[str, tuple[int | None, int, int | None, int]] = {
    "trellis": (0, TILE, 1, TILE),
    "suh": (0, 1, None, 1),
    "svh": (None, 1, 0, 1),
    "weight": (1, 1, 0, 1),
    "weight_scale": (None, 1, 0, 1),
    "weight_scale_inv": (1, BLOCK, 0, BLOCK),
}


def name_of(part: Part) -> str:
    """The matrix's name in the checkpoint."""
    return part if isinstance(part, str) else part.name


class Exl3LinearMethod(LinearMethodBase):  # type: ignore[misc]
    """The method of one linear layer.

    Args:
        parts: the checkpoint's matrices behind it, in the order of vLLM's output partitions.
        source: where the checkpoint is, for messages.
    """

    def __init__(self, parts: Sequence[Part], source: str) -> None:
        self.parts: list[Part] = list(parts)
        self.source = source
        self.exl3 = [i for i, part in enumerate(self.parts) if isinstance(part, Module)]
        self.fp8 = [i for i, part in enumerate(self.parts) if isinstance(part, Fp8Module)]
        self.native = [i for i, part in enumerate(self.parts) if isinstance(part, str)]
        self.runs: list[Apply] = []

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
        """Register parameters; matrices of one kind share a flat one (rates may differ)."""
        self.k, self.n = input_size_per_partition, list(output_partition_sizes)
        self.rows = isinstance(layer, RowParallelLinear)
        self.rank, self.world = getattr(layer, "tp_rank", 0), getattr(layer, "tp_size", 1)
        self.dtype, self.max_tokens, self.dummy = params_dtype, max_tokens(), dummy_weights()
        self.check_layer(layer, input_size)
        self.shapes = {(kind, i): shape for i in range(len(self.n)) for kind, shape in self.stored(i)}
        self.starts: dict[tuple[str, int], int] = {}
        wanted = {(kind, i): f"{name_of(self.parts[i])}.{kind}" for kind, i in self.shapes}
        if self.exl3:
            self.flat(layer, "trellis", "trellis", self.exl3, torch.int16)
            self.flat(layer, "suh", "suh", self.exl3, torch.float16)
            self.flat(layer, "svh", "svh", self.exl3, torch.float16)
            codes = {i: part.codebook for i, part in enumerate(self.parts) if isinstance(part, Module)}
            for mark in MARKERS:
                if mark in codes.values():
                    parameter(layer, mark, (len(self.n),), torch.int32, self.loader(layer, mark))
                    wanted |= {
                        (mark, i): f"{name_of(self.parts[i])}.{mark}" for i, c in codes.items() if c == mark
                    }
        # vLLM asks for a parameter by the tensor's name; native and FP8 matrices are both called `weight`.
        beside = "weight_fp8" if self.native else "weight"
        self.places = dict.fromkeys(self.native, "weight") | dict.fromkeys(self.fp8, beside)
        if self.native:
            self.flat(layer, "weight", "weight", self.native, params_dtype)
        if self.fp8:
            self.flat(layer, self.places[self.fp8[0]], "weight", self.fp8, torch.float8_e4m3fn)
            self.flat(layer, self.scale_name, self.scale_name, self.fp8, torch.float32)
        self.seen = Seen(wanted)

    @property
    def scale_name(self) -> str:
        """The tensor with the scales of this layer's FP8 matrices (which agree; see `check_layer`)."""
        part = self.parts[self.fp8[0]]
        assert isinstance(part, Fp8Module)
        return part.scale_name

    def stored(self, i: int) -> list[tuple[str, tuple[int, ...]]]:
        """Tensors of one matrix and their shapes on this rank, but for markers."""
        part, n = self.parts[i], self.n[i]
        if isinstance(part, Module):
            trellis = (self.k // TILE, n // TILE, round(TILE * part.bits))
            return [("trellis", trellis), ("suh", (self.k,)), ("svh", (n,))]
        found: list[tuple[str, tuple[int, ...]]] = [("weight", (n, self.k))]
        if isinstance(part, Fp8Module):
            found.append((part.scale_name, scale_shape(n, self.k, part.scales)))
        return found

    def flat(
        self, layer: torch.nn.Module, name: str, kind: str, members: list[int], dtype: torch.dtype
    ) -> None:
        """Register one parameter for a kind of tensor of several matrices."""
        at = 0
        for i in members:
            self.starts[kind, i] = at
            at += torch.Size(self.shapes[kind, i]).numel()
        # A lone matrix keeps its shape: vLLM looks at the shapes of some layers' `weight`.
        shape = self.shapes[kind, members[0]] if len(members) == 1 else (at,)
        if kind == "weight":
            shape = (at // self.k, self.k)
        parameter(layer, name, shape, dtype, self.loader(layer, kind))

    def check_layer(self, layer: torch.nn.Module, input_size: int) -> None:
        """The layer's shape must fit the checkpoint's, and shares must end where scales do.

        Raises:
            SparkloomError: it does not; names the tensor.
        """
        if len(self.parts) != len(self.n):
            raise SparkloomError(
                f"{layer.prefix}: {len(self.n)} matrices in vLLM, {len(self.parts)} in the checkpoint",
                file=self.source,
                field=name_of(self.parts[0]),
                mend="serve this model from native weights",
            )
        kinds = {part.scales for part in self.parts if isinstance(part, Fp8Module)}
        if len(kinds) > 1:
            raise SparkloomError(
                f"{layer.prefix} is one layer in vLLM; its FP8 matrices have scales of two kinds",
                file=self.source,
                field=name_of(self.parts[self.fp8[0]]),
                mend="quantise them alike: scales per channel, or per block",
            )
        for part, n in zip(self.parts, self.n, strict=True):
            if isinstance(part, str):
                continue
            tensor = f"{part.name}.{'trellis' if isinstance(part, Module) else 'weight'}"
            for size, what, config in ((part.k, "inputs", input_size), (part.n, "outputs", n)):
                if size != config and (what == "inputs" or self.rows):
                    raise SparkloomError(
                        f"{part.name}: {size} {what} in the checkpoint, {config} by config.json",
                        file=self.source,
                        field=tensor,
                        mend="the checkpoint and its config.json do not fit together: fetch both again",
                    )
            parts = max(part.n // n, 1)
            if isinstance(part, Module):
                divisible(tensor, "an input size", input_size, self.world if self.rows else 1, self.source)
                divisible(tensor, "an output size", part.n, parts, self.source)
            elif part.scales == "block" and self.rows and self.world > 1:
                divisible(tensor, "an input size", input_size, self.world, self.source)
            elif part.scales == "block" and parts > 1:
                divisible(tensor, "an output size", part.n, parts, self.source)

    def loader(self, layer: torch.nn.Module, kind: str) -> Any:
        """The loader of one parameter; called once per logical matrix."""

        def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, shard_id: Any = None) -> None:
            i = {"q": 0, "k": 1, "v": 2, None: 0}.get(shard_id, shard_id)
            part, value = self.parts[i], loaded_weight
            tensor = f"{name_of(part)}.{kind}"
            if kind in MARKERS:
                check_marker(kind, value, tensor, self.source)
                put(param.data[i], value.reshape(()).to(torch.int32), tensor, self.source)
                self.seen.done((kind, i))
                return
            if kind == "weight_scale" and value.dim() == 1:
                value = value[:, None]
            value = self.share(kind, i, value, tensor)
            target = self.piece(layer, kind, i)
            (put if kind in ("trellis", "suh", "svh") else put_plain)(target, value, tensor, self.source)
            self.seen.done((kind, i))

        return load

    def share(self, kind: str, i: int, value: torch.Tensor, tensor: str) -> torch.Tensor:
        """What this rank keeps of a whole tensor."""
        row_axis, row_unit, column_axis, unit = AXES[kind]
        if self.rows:
            if row_axis is None:
                return value
            per = -(-self.k // row_unit)
            return cut(value, row_axis, self.rank * per, per, tensor, self.source)
        if column_axis is None or column_axis >= value.dim():
            return value
        n = self.n[i]
        whole = value.shape[column_axis] * unit
        parts = max(whole // n, 1)  # fewer than ranks where a matrix is replicated over some
        start = self.rank * parts // self.world * n
        return cut(value, column_axis, start // unit, -(-n // unit), tensor, self.source)

    def piece(self, layer: torch.nn.Module, kind: str, i: int) -> torch.Tensor:
        """The part of a parameter that belongs to logical matrix `i`."""
        name = self.places[i] if kind == "weight" else kind
        shape, at = self.shapes[kind, i], self.starts[kind, i]
        data: torch.Tensor = getattr(layer, name).data
        return data.view(-1)[at : at + torch.Size(shape).numel()].view(shape)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check that all arrived, choose a kernel for every run, let it prepare."""
        if self.runs:
            return
        if not self.dummy:
            self.seen.check(layer.prefix, self.source)
        for mark in MARKERS:
            if hasattr(layer, mark):
                delattr(layer, mark)
        spent = {"trellis"} if self.exl3 else set()
        for members in self.neighbours():
            first = self.parts[members[0]]
            if isinstance(first, Module):
                kernel = self.exl3_kernel(layer, members)
                if kernel.packed:
                    spent.discard("trellis")
                self.runs.append(kernel.apply)
            elif isinstance(first, Fp8Module):
                self.runs.append(self.fp8_kernel(layer, members).apply)
                spent |= {self.places[members[0]], self.scale_name}
            else:
                self.runs.append(self.native_run(layer, members))
        for name in spent:
            free(getattr(layer, name))

    def neighbours(self) -> list[list[int]]:
        """Runs of matrices of one kind, in order."""
        found: list[list[int]] = []
        for i, part in enumerate(self.parts):
            last = self.parts[i - 1] if i else None
            same = found and type(last) is type(part)
            if same and isinstance(part, Fp8Module) and part.scales == "block":
                same = self.n[i - 1] % BLOCK == 0  # else the next one's blocks would lie across the grid
            if same:
                found[-1].append(i)
            else:
                found.append([i])
        return found

    def exl3_kernel(self, layer: torch.nn.Module, members: list[int]) -> LinearKernel:
        """A back end's kernel for EXL3 matrices, prepared."""
        parts = [part for part in (self.parts[i] for i in members) if isinstance(part, Module)]
        tensors = {
            kind: tuple(self.piece(layer, kind, i) for i in members) for kind in ("trellis", "suh", "svh")
        }
        spec = LinearSpec(
            layer=layer.prefix if members[0] == 0 else f"{layer.prefix}[{members[0]}]",
            k=self.k,
            n=tuple(self.n[i] for i in members),
            bits=tuple(part.bits for part in parts),
            codebooks=tuple(part.codebook for part in parts),
            max_tokens=self.max_tokens,
            dtype=self.dtype,
        )
        kernel = backends.select(spec, layer.trellis.device)().linear(spec, LinearTensors(**tensors))
        kernel.prepare()
        return kernel

    def fp8_kernel(self, layer: torch.nn.Module, members: list[int]) -> fp8.Fp8Kernel:
        """A kernel for FP8 matrices; it keeps their weights, the parameters are spent."""
        scales = next(kind for kind, name in SCALES.items() if name == self.scale_name)
        both = [[self.piece(layer, kind, i) for i in members] for kind in ("weight", self.scale_name)]
        weight, scale = (one[0] if len(one) == 1 else torch.cat(one) for one in both)
        spec = fp8.Fp8Spec(layer.prefix, self.k, sum(self.n[i] for i in members), scales, self.dtype)
        return fp8.build(spec, weight, scale)

    def native_run(self, layer: torch.nn.Module, members: list[int]) -> Apply:
        """An ordinary product."""
        first = self.starts["weight", members[0]] // self.k
        last = first + sum(self.n[i] for i in members)
        return lambda x: F.linear(x, layer.weight[first:last])

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., k] -> [..., sum(n)], plus the bias."""
        # No `assert self.runs`: torch.compile cannot trace the assertion of a list.
        y = self.runs[0](x) if len(self.runs) == 1 else torch.cat([run(x) for run in self.runs], -1)
        return y if bias is None else y + bias


class DecodedLinearMethod(Exl3LinearMethod, UnquantizedLinearMethod):  # type: ignore[misc]
    """For layers whose native weight vLLM's attention reads (`kv_b_proj`): decode once, then be native."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Replace the stored parameters by a native `weight`."""
        if self.runs:
            return
        if not self.dummy:
            self.seen.check(layer.prefix, self.source)
        weight = torch.cat([self.decoded(layer, i).to(self.dtype) for i in range(len(self.n))])
        for name in [name for name, _ in layer.named_parameters(recurse=False) if name != "bias"]:
            delattr(layer, name)
        layer.register_parameter("weight", torch.nn.Parameter(weight, requires_grad=False))
        self.runs = [lambda x: F.linear(x, layer.weight)]

    def decoded(self, layer: torch.nn.Module, i: int) -> torch.Tensor:
        """The dense weight of one matrix, [n, k]."""
        part = self.parts[i]
        if isinstance(part, Module):
            trellis, suh, svh = (self.piece(layer, kind, i) for kind in ("trellis", "suh", "svh"))
            return dense(trellis, suh, svh, part.codebook)
        weight = self.piece(layer, "weight", i)
        if isinstance(part, Fp8Module):
            return fp8.decode(weight, self.piece(layer, part.scale_name, i), part.scales)
        return weight

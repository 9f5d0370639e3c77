"""The reference back end: plain torch, any device, any rate, any codebook.

It computes with dense weights in the original basis: `W = diag(suh) H decode(trellis) H diag(svh)` in
float32, cast once to the type of `x`, then ordinary matrix products. (Kernels that stay in the rotated
basis round at other places; `sparkloom.exl3.forward` is their yardstick. In float32 this form and the
codec's `dense_weight` agree to rounding, so greedy tokens equal those of a model that holds dense weights.)

Packed weights stay packed. Decoded experts are kept in one least-recently-used cache per process, bounded in
bytes, so a small model runs at dense speed and a large one still runs. `SPARKLOOM_EXL3_EXPAND=1` decodes
everything at load instead and drops the packed form.

It reads expert numbers on the host, so it cannot be captured into a CUDA graph: use `--enforce-eager` with
it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F

from sparkloom.errors import Exit, SparkloomError
from sparkloom.vllm import options
from sparkloom.vllm.backends.base import (
    Backend,
    ExpertsKernel,
    ExpertsSpec,
    ExpertsTensors,
    LinearKernel,
    LinearSpec,
    LinearTensors,
)

Pair = tuple[torch.Tensor, torch.Tensor]
BLOCK = 128


@cache
def codebook(name: str, device: torch.device) -> torch.Tensor:
    """The 65,536 values of a codebook, float32, on `device`."""
    from sparkloom.exl3 import codebook as table

    return torch.from_numpy(table(name).astype("float32")).to(device)


@cache
def windows(width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For a tile of `width` words: per weight in row-major order, the ring word that holds the last bit of
    its 16-bit state, the word before, and the right shift. All int64 [256].
    """
    bits = width / 16
    low = int(bits)
    high = low if bits == low else low + 1
    position = torch.arange(256)
    ends = torch.cumsum(torch.where(position % 2 == 0, low, high), 0)
    lane, slot = position >> 3, position & 7
    row = 2 * (lane & 3) + (slot & 1) + 8 * ((slot >> 1) & 1)
    column = (lane >> 2) + 8 * ((slot >> 2) & 1)
    end = torch.empty_like(ends).scatter_(0, row * 16 + column, ends)
    word = (end - 1) // 16
    # The ring takes the words of each little-endian 32-bit pair high half first.
    return (word ^ 1).to(device), (((word - 1) % width) ^ 1).to(device), (16 * (word + 1) - end).to(device)


def decode(trellis: torch.Tensor, name: str) -> torch.Tensor:
    """int16 [..., k/16, n/16, width] -> float32 [..., k, n] in the rotated basis."""
    last, before, shift = windows(trellis.shape[-1], trellis.device)
    words = trellis.to(torch.int32) & 0xFFFF
    state = ((words[..., before] << 16 | words[..., last]) >> shift.to(torch.int32)) & 0xFFFF
    values = codebook(name, trellis.device)[state]
    *batch, kt, nt, _ = values.shape
    return values.view(*batch, kt, nt, 16, 16).transpose(-2, -3).reshape(*batch, kt * 16, nt * 16)


@cache
def hadamard(device: torch.device) -> torch.Tensor:
    """The 128 x 128 Sylvester matrix over the square root of 128, float32."""
    h = torch.ones(1, 1, dtype=torch.float32)  # vLLM loads with the model's type as default
    while h.shape[0] < BLOCK:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (h * BLOCK**-0.5).to(device)


def dense(trellis: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor, name: str) -> torch.Tensor:
    """The weight in the original basis, transposed as `F.linear` wants it: float32 [n, k]."""
    rotated = decode(trellis, name)
    k, n = rotated.shape
    h = hadamard(rotated.device)
    left = (h @ rotated.view(k // BLOCK, BLOCK, n)).view(k, n // BLOCK, BLOCK)
    both = (left @ h).view(k, n)
    return (both * suh.float()[:, None] * svh.float()).t().contiguous()


class DecodedCache:
    """Decoded experts, least recently used out first, bounded in bytes over all layers of a process."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._items: OrderedDict[tuple[int, int], Pair] = OrderedDict()

    def get(self, key: tuple[int, int], make: Callable[[], Pair]) -> Pair:
        """The pair under `key`, made if it is not there."""
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
            return found
        pair = make()
        size = sum(t.numel() * t.element_size() for t in pair)
        if size <= self.limit:
            while self.bytes + size > self.limit:
                _, old = self._items.popitem(last=False)
                self.bytes -= sum(t.numel() * t.element_size() for t in old)
            self._items[key] = pair
            self.bytes += size
        return pair


_serials = itertools.count()  # keys of the cache: an id() would be used again after a layer is gone


@cache
def shared_cache() -> DecodedCache:
    """The cache of this process."""
    return DecodedCache(options.read().cache_bytes)


class ReferenceExperts(ExpertsKernel):
    """Routed experts, one dense product per expert that a step touches."""

    def __init__(
        self, spec: ExpertsSpec, tensors: ExpertsTensors, *, expand: bool, cached: DecodedCache
    ) -> None:
        self.spec, self.tensors, self.expand, self.cached = spec, tensors, expand, cached
        self.serial = next(_serials)
        self.whole: list[Pair] = []
        self.map: list[int] | None = None

    def prepare(self) -> None:
        """Read the expert map to the host; with `expand`, decode every expert and drop the packed weights."""
        if self.tensors.expert_map is not None:
            self.map = self.tensors.expert_map.tolist()
        if self.expand:
            self.whole = [self.make(e) for e in range(self.spec.experts)]
            del self.tensors
            self.packed = False

    def make(self, e: int) -> Pair:
        """Decode one expert: gate over up [2*I, H], down [H, I], in the type of `x`."""
        t, name = self.tensors, self.spec.codebook
        both = [dense(t.w13_trellis[e, i], t.w13_suh[e, i], t.w13_svh[e, i], name) for i in (0, 1)]
        down = dense(t.w2_trellis[e], t.w2_suh[e], t.w2_svh[e], name)
        return torch.cat(both).to(self.spec.dtype), down.to(self.spec.dtype)

    def expert(self, e: int, x: torch.Tensor) -> torch.Tensor:
        """x [t, H] through one local expert, [t, H]."""
        gate_up, down = (
            self.whole[e] if self.whole else self.cached.get((self.serial, e), lambda: self.make(e))
        )
        gate, up = F.linear(x, gate_up).chunk(2, -1)
        limit = self.spec.swiglu_limit
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return F.linear(F.silu(gate) * up, down)

    def apply(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """See the base class; sums in float32."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise SparkloomError(
                "the reference back end cannot be captured into a CUDA graph",
                field="SPARKLOOM_EXL3_BACKEND",
                value="reference",
                mend="start with --enforce-eager, or use the cuda back end",
                code=Exit.USAGE,
            )
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        scale = weights.float()
        if x.shape[0] == 1:  # the usual decode step: no gathering
            for slot, chosen in enumerate(ids[0].tolist()):
                local = chosen if self.map is None else self.map[chosen]
                if local >= 0:
                    out += self.expert(local, x).float() * scale[0, slot]
            return out.to(x.dtype)
        for chosen in ids.unique().tolist():
            local = chosen if self.map is None else self.map[chosen]
            if local >= 0:
                token, slot = (ids == chosen).nonzero(as_tuple=True)
                y = self.expert(local, x[token]).float() * scale[token, slot, None]
                out.index_add_(0, token, y)
        return out.to(x.dtype)


class ReferenceLinear(LinearKernel):
    """A dense linear layer, decoded on each use, or once with `expand`."""

    def __init__(
        self, spec: LinearSpec, tensors: LinearTensors, *, expand: bool, cached: DecodedCache
    ) -> None:
        self.spec, self.tensors, self.expand, self.cached = spec, tensors, expand, cached
        self.serial = next(_serials)
        self.whole: torch.Tensor | None = None

    def prepare(self) -> None:
        """With `expand`, decode and drop the packed weights."""
        if self.expand:
            self.whole = self.make()
            del self.tensors
            self.packed = False

    def make(self) -> torch.Tensor:
        """All logical matrices side by side, [sum(n), k], in the type of `x`."""
        t = self.tensors
        rows = [dense(*one) for one in zip(t.trellis, t.suh, t.svh, self.spec.codebooks, strict=True)]
        return torch.cat(rows).to(self.spec.dtype)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        whole = self.whole
        if whole is None:
            whole = self.cached.get((self.serial, 0), lambda: (self.make(), torch.empty(0)))[0]
        return F.linear(x, whole)


class ReferenceBackend(Backend):
    """Plain torch; always available."""

    name: ClassVar[str] = "reference"

    @classmethod
    def unavailable(cls, device: torch.device) -> str | None:
        """Runs everywhere."""
        return None

    def experts(self, spec: ExpertsSpec, tensors: ExpertsTensors) -> ReferenceExperts:
        """Build the kernel object of one MoE layer."""
        return ReferenceExperts(spec, tensors, expand=options.read().expand, cached=shared_cache())

    def linear(self, spec: LinearSpec, tensors: LinearTensors) -> ReferenceLinear:
        """Build the kernel object of one dense linear layer."""
        return ReferenceLinear(spec, tensors, expand=options.read().expand, cached=shared_cache())

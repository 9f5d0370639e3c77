"""EXL3 routed experts in vLLM: parameters in the checkpoint's own layout, own loaders, a back end that
computes.

Parameter names follow vLLM's expert mapping: `experts.7.gate_proj.trellis` is loaded into `w13_trellis`,
shard "w1" of expert 7. Tensor parallelism narrows: gate and up by output (trellis dimension 1, svh), down
by input (trellis dimension 0, suh), at multiples of 128, where the Hadamard transform has its block
borders; nothing is repacked.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig

from sparkloom.errors import SparkloomError
from sparkloom.vllm import backends
from sparkloom.vllm.backends.base import ExpertsKernel, ExpertsSpec, ExpertsTensors
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

SHARDS = {"w1": 0, "w3": 1}  # place in w13; w2 stands alone


class Exl3ExpertsMethod(FusedMoEMethodBase):  # type: ignore[misc]
    """The method of one MoE layer.

    Args:
        moe: vLLM's description of the layer.
        gate, up, down: the checkpoint's EXL3 modules.
        source: where the checkpoint is, for messages.
    """

    def __init__(self, moe: FusedMoEConfig, gate: Module, up: Module, down: Module, source: str) -> None:
        super().__init__(moe)
        self.gate, self.up, self.down, self.source = gate, up, down, source
        self.kernel: ExpertsKernel | None = None
        if (gate.bits, gate.codebook) != (up.bits, up.codebook) or gate.codebook != down.codebook:
            raise SparkloomError(
                f"gate, up and down of one layer disagree: {gate.bits:g} bits {gate.codebook}, "
                f"{up.bits:g} bits {up.codebook}, {down.bits:g} bits {down.codebook}",
                file=source,
                field=gate.name,
                mend="encode gate and up at one rate, and all three with one codebook",
            )

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register the packed parameters; their loaders cut for this rank."""
        e, h, i = num_experts, hidden_size, intermediate_size_per_partition
        world = self.moe.tp_size
        self.check_layer(layer, h, i, world)
        self.max_tokens, self.dummy, self.dtype = max_tokens(), dummy_weights(), params_dtype
        wide, down = round(16 * self.gate.bits), round(16 * self.down.bits)
        kinds = ["trellis", "suh", "svh"]
        marker = self.gate.codebook if self.gate.codebook in MARKERS else None
        for kind, w13, w2, dtype in (
            ("trellis", (e, 2, h // TILE, i // TILE, wide), (e, i // TILE, h // TILE, down), torch.int16),
            ("suh", (e, 2, h), (e, i), torch.float16),
            ("svh", (e, 2, i), (e, h), torch.float16),
        ):
            parameter(layer, f"w13_{kind}", w13, dtype, self.loader(layer, kind, i))
            parameter(layer, f"w2_{kind}", w2, dtype, self.loader(layer, kind, i))
        if marker is not None:
            parameter(layer, f"w13_{marker}", (e, 2), torch.int32, self.loader(layer, marker, i))
            parameter(layer, f"w2_{marker}", (e,), torch.int32, self.loader(layer, marker, i))
            kinds.append(marker)
        self.seen = Seen(
            {
                (kind, shard, local): f"{module.name} (this rank's expert {local}), .{kind}"
                for kind in kinds
                for shard, module in (("w1", self.gate), ("w3", self.up), ("w2", self.down))
                for local in range(e)
            }
        )

    def check_layer(self, layer: torch.nn.Module, hidden: int, intermediate: int, world: int) -> None:
        """What the layer is must fit what the checkpoint holds and what the back ends compute.

        Raises:
            SparkloomError: another shape, an activation other than gated SiLU, a share that is no multiple
            of 128.
        """
        whole = intermediate * world
        for module, k, n in (
            (self.gate, hidden, whole),
            (self.up, hidden, whole),
            (self.down, whole, hidden),
        ):
            if module.k and (module.k, module.n) != (k, n):
                raise SparkloomError(
                    f"{module.name}: {module.k} x {module.n} in the checkpoint, {k} x {n} by config.json",
                    file=self.source,
                    field=f"{module.name}.trellis",
                    mend="the checkpoint and its config.json do not fit together: fetch both again",
                )
        divisible(f"{self.down.name}.trellis", "an intermediate size", whole, world, self.source)
        divisible(f"{self.gate.name}.trellis", "a hidden size", hidden, 1, self.source)
        odd = [name for name in ("swiglu_alpha", "swiglu_beta") if getattr(layer, name, None) is not None]
        if getattr(layer, "apply_router_weight_on_input", False):
            odd.append("apply_router_weight_on_input")
        if layer.activation != MoEActivation.SILU:
            odd.append(f"activation {layer.activation.value}")
        if odd:
            raise SparkloomError(
                f"{layer.layer_name}: EXL3 experts are SwiGLU with an optional limit; this model asks for "
                + ", ".join(odd),
                file=self.source,
                mend="serve this model from native weights",
            )

    def loader(self, layer: torch.nn.Module, kind: str, share: int) -> Any:
        """The loader of one parameter; vLLM calls it once per expert tensor of the checkpoint."""
        rank = self.moe.tp_rank

        def load(
            param: torch.nn.Parameter,
            loaded_weight: torch.Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            local = layer._map_global_expert_id_to_local_expert_id(expert_id)
            if local == -1:  # another rank's, under expert parallelism
                return False if return_success else None
            module = {"w1": self.gate, "w3": self.up, "w2": self.down}[shard_id]
            tensor = f"{module.name.replace('*', str(expert_id))}.{kind}"
            place = (local,) if shard_id == "w2" else (local, SHARDS[shard_id])
            target, value = param.data[place], loaded_weight
            if kind in MARKERS:
                check_marker(kind, value, tensor, self.source)
                value = value.reshape(()).to(torch.int32)
            elif shard_id == "w2" and kind in ("trellis", "suh"):
                unit = TILE if kind == "trellis" else 1
                value = cut(value, 0, rank * share // unit, share // unit, tensor, self.source)
            elif shard_id != "w2" and kind in ("trellis", "svh"):
                dim, unit = (1, TILE) if kind == "trellis" else (0, 1)
                value = cut(value, dim, rank * share // unit, share // unit, tensor, self.source)
            put(target, value, tensor, self.source)
            self.seen.done((kind, shard_id, local))
            return True if return_success else None

        load.supports_moe_loading = True  # type: ignore[attr-defined]
        return load

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check that all arrived, choose a back end, let it prepare."""
        if self.kernel is not None:
            return
        if not self.dummy:
            self.seen.check(layer.layer_name, self.source)
        for name in (f"{part}_{mark}" for part in ("w13", "w2") for mark in MARKERS):
            if hasattr(layer, name):
                delattr(layer, name)
        tensors = ExpertsTensors(
            w13_trellis=layer.w13_trellis.data,
            w13_suh=layer.w13_suh.data,
            w13_svh=layer.w13_svh.data,
            w2_trellis=layer.w2_trellis.data,
            w2_suh=layer.w2_suh.data,
            w2_svh=layer.w2_svh.data,
            expert_map=layer.expert_map,
        )
        e, _, h = tensors.w13_suh.shape
        spec = ExpertsSpec(
            layer=layer.layer_name,
            experts=e,
            hidden=h,
            intermediate=tensors.w2_suh.shape[1],
            top_k=layer.top_k,
            max_tokens=self.max_tokens,
            bits13=self.gate.bits,
            bits2=self.down.bits,
            codebook=self.gate.codebook,
            swiglu_limit=layer.swiglu_limit,
            dtype=self.dtype,
            shared_suh=bool(torch.equal(tensors.w13_suh[:, 0], tensors.w13_suh[:, 1])),
            rank=self.moe.tp_rank,
            world=self.moe.tp_size,
        )
        self.kernel = backends.select(spec, tensors.w13_trellis.device)().experts(spec, tensors)
        self.kernel.prepare()
        if not self.kernel.packed:
            del tensors
            free(layer.w13_trellis, layer.w2_trellis)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> FusedMoEQuantConfig:
        """vLLM asks once; `apply` does not use it."""
        return FusedMoEQuantConfig.make()

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """This rank's partial sum; vLLM routes before, adds the shared expert and reduces after."""
        assert self.kernel is not None, "process_weights_after_loading has not run"
        return self.kernel.apply(x, topk_weights, topk_ids)

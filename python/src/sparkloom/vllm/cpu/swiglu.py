"""Blocker 14, silent: native experts on a CPU ignore `swiglu_limit`.

Upstream: `CPUUnquantizedExperts` has no place for the limit (10.0 in GLM-5.3) and computes without it:
right for small activations, wrong as soon as a gate or up value passes the limit, with no error. EXL3
experts clamp (every back end must). Here: native experts with a limit in plain torch; without a limit
upstream's kernel stays.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
    expert_map: torch.Tensor | None = None,
) -> torch.Tensor:
    """The chosen experts' weighted sum, [T, H] like `x`.

    Args:
        weights, ids: [T, top_k], routing weights and global expert numbers.
        gate_up: [E, 2*I, H], gate over up.
        down: [E, H, I].
        expert_map: global number -> place in `gate_up`, -1 for another rank's.
    """
    out = torch.zeros(x.shape, dtype=torch.float32)
    for chosen in ids.unique().tolist():
        local = chosen if expert_map is None else int(expert_map[chosen])
        if local < 0:
            continue
        token, slot = (ids == chosen).nonzero(as_tuple=True)
        gate, up = F.linear(x[token], gate_up[local]).chunk(2, -1)
        y = F.linear(F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit), down[local])
        out.index_add_(0, token, y.float() * weights[token, slot, None].float())
    return out.to(x.dtype)


def apply() -> None:
    """Let native MoE layers with a limit take this form; their weights stay as they were loaded."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    finish, compute = UnquantizedFusedMoEMethod.process_weights_after_loading, UnquantizedFusedMoEMethod.apply

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        if getattr(layer, "swiglu_limit", None) is None:
            finish(self, layer)

    def apply_experts(
        self: Any,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        limit = getattr(layer, "swiglu_limit", None)
        if limit is None:
            return compute(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input)
        return experts(
            x, topk_weights, topk_ids, layer.w13_weight, layer.w2_weight, float(limit), layer.expert_map
        )

    UnquantizedFusedMoEMethod.process_weights_after_loading = process_weights_after_loading
    UnquantizedFusedMoEMethod.apply = apply_experts

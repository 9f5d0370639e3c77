"""Blocker 13: MTP's input norm is a Triton kernel.

Upstream: `fused_eh_norm` in `glm5next.nvidia.ops`. Here: the same in torch: the embedding of position 0 is
zeroed, both halves are normalised and put side by side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def fused_eh_norm(
    positions: torch.Tensor,
    embeds: torch.Tensor,
    previous: torch.Tensor,
    embed_weight: torch.Tensor,
    hidden_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """[T, H] and [T, H] -> [T, 2H]."""
    embeds = torch.where(positions[:, None] == 0, torch.zeros_like(embeds), embeds)
    width = embeds.shape[-1:]
    left = F.rms_norm(embeds.float(), width, embed_weight.float(), eps)
    right = F.rms_norm(previous.float(), width, hidden_weight.float(), eps)
    return torch.cat([left, right], -1).to(embeds.dtype)


def apply() -> None:
    """Give the MTP layer this function."""
    import vllm.models.glm5next.common.mtp as upstream

    upstream.fused_eh_norm = fused_eh_norm

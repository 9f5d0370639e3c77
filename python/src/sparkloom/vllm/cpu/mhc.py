"""Blocker 10, silent: mHC on a CPU drops the layer norms.

Upstream: the model hands the norm that follows each mHC step over as `norm_weight`, to be fused. The CPU
kernel of `MHCPreOp` takes and ignores it, `MHCFusedPostPreOp.forward_cpu` does not even pass it on; so
neither the input norm nor the post-attention norm of a layer ever runs, with no error. (The kernel also
takes bfloat16 only.) Here: the whole step in torch, any type, with the norm.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Mix = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def pre(
    self: Any,
    residual: torch.Tensor,
    fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    rms_eps: float,
    hc_pre_eps: float,
    hc_sinkhorn_eps: float,
    hc_post_mult_value: float,
    sinkhorn_repeat: int,
    n_splits: int = 1,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float = 0.0,
) -> Mix:
    """Streams [T, n, d] -> post [T, n, 1] and comb [T, n, n] (how to spread the output), input [T, d]."""
    n = residual.shape[-2]
    streams = residual.float()
    flat = streams.flatten(-2)
    mix = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    collapse = torch.sigmoid(mix[:, :n] * hc_scale[0] + hc_base[:n]) + hc_pre_eps
    spread = torch.sigmoid(mix[:, n : 2 * n] * hc_scale[1] + hc_base[n : 2 * n]) * hc_post_mult_value
    logits = (mix[:, 2 * n :] * hc_scale[2] + hc_base[2 * n :]).view(-1, n, n)
    comb = torch.softmax(logits, -1) + hc_sinkhorn_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_sinkhorn_eps)
    for _ in range(sinkhorn_repeat - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_sinkhorn_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_sinkhorn_eps)
    x = (collapse[..., None] * streams).sum(-2).to(residual.dtype)
    if norm_weight is not None:
        x = F.rms_norm(x.float(), x.shape[-1:], norm_weight.float(), norm_eps).to(residual.dtype)
    return spread[..., None], comb, x


def post(
    self: Any, x: torch.Tensor, residual: torch.Tensor, post_mix: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """The layer's output [T, d] back into the streams [T, n, d]."""
    mixed = torch.einsum("tij,tih->tjh", comb.float(), residual.float())
    return (mixed + post_mix.float() * x.float()[:, None]).to(residual.dtype)


def post_pre(
    self: Any,
    x: torch.Tensor,
    residual: torch.Tensor,
    post_layer_mix: torch.Tensor,
    comb_res_mix: torch.Tensor,
    fn: torch.Tensor,
    *args: Any,
    tile_n: int = 1,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The end of one sublayer and the beginning of the next."""
    streams = post(self, x, residual, post_layer_mix, comb_res_mix)
    return (streams, *pre(self, streams, fn, *args, **kwargs))


def apply() -> None:
    """Give the three operations these CPU forms."""
    import vllm.model_executor.layers.mhc as upstream

    upstream.MHCPreOp.forward_cpu = pre
    upstream.MHCPostOp.forward_cpu = post
    upstream.MHCFusedPostPreOp.forward_cpu = post_pre

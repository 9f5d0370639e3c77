"""Blocker 2: "Sparse Attention is not supported on CPU."

The attention layer is built through the model's own dense branch (it believes that `index_topk` is None),
and this module's indexer, which holds the same parameters as vLLM's, hands the latent attention a mask of
what each token may see. It selects as transformers does: raw keys and gate scores are kept per token and
pooled when read, in the model's own precision (vLLM's GPU form keeps pooled fp8). The side cache is
addressed by the attention layer's own slots and stands outside vLLM's KV accounting: 2 * index_head_dim
values per token and layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class DenseBranch:
    """A configuration that answers None for `index_topk`, which the strict class itself refuses."""

    def __init__(self, config: Any) -> None:
        self.__dict__["config"] = config

    def __getattr__(self, name: str) -> Any:
        return None if name == "index_topk" else getattr(self.__dict__["config"], name)


class KpoolIndexer(torch.nn.Module):  # type: ignore[misc]
    """Chooses, per token, the pools of `index_kpool` tokens with the best scores, and always the incomplete
    last one.

    Before the attention runs, `hidden` (input of the layer, [T, hidden_size]), `positions` [T] and
    `q_latent` (input of q_b_proj, [T, q_lora_rank]) are set; `write` then stores keys, `mask` reads.
    """

    def __init__(self, config: Any, prefix: str, quant_config: Any = None) -> None:
        super().__init__()
        from vllm.model_executor.layers.linear import MergedColumnParallelLinear, ReplicatedLinear

        self.topk, self.pool = config.index_topk, config.index_kpool
        self.heads, self.dim = config.index_n_heads, config.index_head_dim
        self.wq_b = ReplicatedLinear(
            config.q_lora_rank,
            self.heads * self.dim,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.wq_b",
        )
        self.wk_weights_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [self.dim, self.heads],
            bias=False,
            disable_tp=True,
            prefix=f"{prefix}.wk_weights_proj",
        )
        self.k_norm = torch.nn.LayerNorm(self.dim, eps=1e-6, dtype=torch.float32)
        self.index_kpool_compress_ape = torch.nn.Parameter(
            torch.zeros(self.pool, self.dim, dtype=torch.float32), requires_grad=False
        )
        self.index_kpool_compress_gate = torch.nn.Parameter(
            torch.empty(self.dim, config.hidden_size), requires_grad=False
        )
        self.hidden: torch.Tensor | None = None
        self.positions: torch.Tensor | None = None
        self.q_latent: torch.Tensor | None = None
        self.weights: torch.Tensor | None = None
        self.cache: torch.Tensor | None = None

    def write(self, kv_cache: torch.Tensor, slots: torch.Tensor, valid: torch.Tensor) -> None:
        """Store key and gate score of this step's tokens.

        Args:
            kv_cache: [blocks, block_size, ...], for its shape.
            slots: cache slots of the valid tokens.
            valid: [T] bool, which tokens of the step have a slot.
        """
        assert self.hidden is not None
        count, block = valid.shape[0], kv_cache.shape[1]
        both = self.wk_weights_proj(self.hidden)[0][:count]
        self.weights = both[:, self.dim :].float() * self.heads**-0.5
        key = self.k_norm(both[:, : self.dim].float()).to(both.dtype)
        gate = F.linear(self.hidden[:count], self.index_kpool_compress_gate)
        if self.cache is None or self.cache.shape[:2] != kv_cache.shape[:2]:
            self.cache = torch.zeros(*kv_cache.shape[:2], 2 * self.dim, dtype=both.dtype)
        self.cache[slots // block, slots % block] = torch.cat([key, gate], -1)[valid]

    def mask(self, start: int, end: int, blocks: torch.Tensor, length: int) -> torch.Tensor:
        """What rows `start`..`end` of this step, all of one request, may see of its `length` tokens.

        Args:
            blocks: the request's cache blocks, in order.

        Returns:
            bool [end - start, length].
        """
        assert self.positions is not None
        position = self.positions[start:end, None]
        column = torch.arange(length)[None]
        causal = column <= position
        if length <= self.topk:
            return causal
        assert self.cache is not None
        assert self.weights is not None
        assert self.q_latent is not None
        pools = length // self.pool
        stored = self.cache[blocks].flatten(0, 1)[: pools * self.pool]
        key, gate = stored.view(pools, self.pool, 2, self.dim).unbind(2)
        share = torch.softmax(gate.float() + self.index_kpool_compress_ape, 1).to(key.dtype)
        key = (share * key).sum(1)
        query = self.wq_b(self.q_latent[start:end])[0].view(end - start, self.heads, self.dim)
        score = F.relu(query.float() @ key.float().t() * self.dim**-0.5)
        score = (self.weights[start:end, None] @ score)[:, 0]
        complete = torch.arange(self.pool - 1, pools * self.pool, self.pool)[None] <= position
        score = score.masked_fill(~complete, torch.finfo(score.dtype).min)
        best = score.topk(min(self.topk // self.pool, pools), -1).indices
        chosen = torch.zeros_like(score, dtype=torch.bool).scatter_(1, best, True) & complete
        chosen = F.pad(chosen.repeat_interleave(self.pool, 1), (0, length - pools * self.pool))
        unfinished = column >= (position + 1) // self.pool * self.pool
        return causal & (chosen | unfinished)


def apply() -> None:
    """Build attention layers with this indexer, and feed it before each attention."""
    import vllm.models.glm5next.common.attention as upstream

    layer = upstream.Glm5NextMLAAttention
    build = layer.__init__

    def init(self: Any, vllm_config: Any, config: Any, **kwargs: Any) -> None:
        kwargs["topk_indices_buffer"] = None
        build(self, vllm_config, DenseBranch(config), **kwargs)
        self.indexer = indexer = KpoolIndexer(
            config, kwargs.get("prefix", "") + ".indexer", kwargs.get("quant_config")
        )
        self.mla_attn.mla_attn.impl.kpool = indexer

        def keep(module: Any, args: tuple[torch.Tensor, ...]) -> None:
            indexer.q_latent = args[0]

        self.q_b_proj.register_forward_pre_hook(keep)

    def forward(self: Any, hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.indexer.hidden, self.indexer.positions = hidden_states, positions
        return self.mla_attn(positions, hidden_states)

    layer.__init__, layer.forward = init, forward

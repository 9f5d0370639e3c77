"""Blockers 3 and 9: vLLM's CPU MLA is made for DeepSeek's one shape.

Upstream: `CPUMLABackend` supports blocks of 16 tokens and a latent of 576 values only (its C++ decode is
compiled for that), but a hybrid model's blocks follow its state pages and GLM-5.3 has no rope, hence 512.
`do_kv_cache_update` reshapes the rope part with `view(-1, 0)`, which torch refuses. On a machine with AMX
the platform takes yet another back end. Here: any block and head size, prefill and decode in torch over the
paged latent cache, with the mask of the kpool indexer. Layers without that indexer (other models) keep
upstream's methods.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch


def attend(score: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Softmax over what may be seen; `seen` broadcasts against `score`."""
    return torch.softmax(score.masked_fill(~seen, float("-inf")), -1)


def latents(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` latents of a request, [length, width]."""
    return cache[blocks].flatten(0, 1)[:length]


def own_blocks(table: torch.Tensor, row: int, length: int, block: int) -> torch.Tensor:
    """The block numbers that hold a request's first `length` tokens."""
    return table[row, : -(-length // block)].long()


def decode(self: Any, q: Any, cache: torch.Tensor, metadata: Any) -> tuple[torch.Tensor, None]:
    """One query row per request, in the latent space (weights absorbed): [T, heads, kv_lora_rank]."""
    if isinstance(q, tuple):
        q = torch.cat(q, -1)
    out = q.new_zeros(q.shape[0], q.shape[1], self.kv_lora_rank)
    for row, length in enumerate(metadata.decode.seq_lens.tolist()):
        if not length:
            continue
        blocks = own_blocks(metadata.decode.block_table, row, length, cache.shape[1])
        kv = latents(cache, blocks, length).float()
        weight = attend(q[row].float() @ kv.t() * self.scale, self.kpool.mask(row, row + 1, blocks, length))
        out[row] = (weight @ kv[:, : self.kv_lora_rank]).to(q.dtype)
    return out, None


def prefill(self: Any, q: torch.Tensor, cache: torch.Tensor, metadata: Any, output: torch.Tensor) -> None:
    """Several query rows per request (prompts, verification of drafts), over everything cached so far."""
    first = metadata.num_decode_tokens
    for row, (start, end) in enumerate(pairwise(metadata.prefill.query_start_loc.tolist())):
        if end == start:
            continue
        length = int(self.kpool.positions[first + end - 1]) + 1
        blocks = own_blocks(metadata.prefill.block_table, row, length, cache.shape[1])
        kv = latents(cache, blocks, length).to(q.dtype)[:, : self.kv_lora_rank]
        key, value = (
            self.kv_b_proj(kv)[0]
            .view(length, self.num_heads, -1)
            .split([self.qk_nope_head_dim, self.v_head_dim], -1)
        )
        score = torch.einsum("qhd,nhd->hqn", q[start:end].float(), key.float()) * self.scale
        weight = attend(score, self.kpool.mask(first + start, first + end, blocks, length))
        result = torch.einsum("hqn,nhd->qhd", weight, value.float())
        output[start:end] = result.flatten(1).to(output.dtype)


def write(self: Any, latent: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Store this step's latents (without rope they are all there is) and the indexer's keys."""
    if not cache.numel():
        return
    slots = slot_mapping.flatten().long()
    valid = slots >= 0
    count, slots, block = slots.shape[0], slots[valid], cache.shape[1]
    cache[slots // block, slots % block] = latent[:count][valid].to(cache.dtype)
    self.kpool.write(cache, slots, valid)


def apply() -> None:
    """Replace the methods of vLLM's CPU MLA for layers that have a kpool indexer."""
    import vllm.v1.attention.backends.mla.cpu_mla as upstream
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend, impl = upstream.CPUMLABackend, upstream.CPUMLAImpl
    choose = CpuPlatform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any
    ) -> str:
        if attn_selector_config.use_mla and not attn_selector_config.use_sparse:
            selected_backend = AttentionBackendEnum.CPU_MLA
        return str(choose(cls, selected_backend, attn_selector_config, *args, **kwargs))

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
    backend.get_supported_kernel_block_sizes = staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)])
    backend.supports_block_size = classmethod(lambda cls, size: size is None or size % 16 == 0)
    backend.get_supported_head_sizes = classmethod(lambda cls: [])

    old_decode, old_prefill, old_write = impl.forward_mqa, impl.forward_mha, impl.do_kv_cache_update

    def forward_mqa(self: Any, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> Any:
        if getattr(self, "kpool", None) is None:
            return old_decode(self, q, kv_c_and_k_pe_cache, attn_metadata, layer)
        return decode(self, q, kv_c_and_k_pe_cache, attn_metadata)

    def forward_mha(
        self: Any,
        q: torch.Tensor,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        k_scale: torch.Tensor,
        output: torch.Tensor,
        output_scale: Any = None,
    ) -> None:
        if getattr(self, "kpool", None) is None:
            old_prefill(
                self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output, output_scale
            )
            return
        prefill(self, q, kv_c_and_k_pe_cache, attn_metadata, output)

    def do_kv_cache_update(
        self: Any,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:
        if getattr(self, "kpool", None) is None:
            old_write(self, kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale)
            return
        write(self, kv_c_normed, kv_cache, slot_mapping)

    impl.forward_mqa, impl.forward_mha, impl.do_kv_cache_update = forward_mqa, forward_mha, do_kv_cache_update

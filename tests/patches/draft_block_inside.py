"""Run inside vLLM 0.33: plan and use the pool at the model's true sizes, two ranks, 7 drafts; print it.

The options are those of the environment. vLLM's are the drafter's spec, the grouping, the placement, the
block sizes and the cache manager; ours are the model's other specs (their numbers are pinned in tests/plan).
"""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace as N
from typing import Any

import torch

WINDOW, DRAFTS, CHUNK, POOL = 2048, 7, 7168, 25_000_000_000
LIMIT = 65_536


def draft_spec(block: int) -> Any:
    """What a layer of the drafter declares: 8 KV heads over two ranks, 128 wide."""
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.v1.attention.backend import AttentionType, MultipleOf

    backend = N(
        is_mla=lambda: False,
        customize_spec=lambda spec: spec,
        get_supported_kernel_block_sizes=lambda spec=None: [MultipleOf(16)],  # as FlashAttention says
    )
    layer: Any = Attention.__new__(Attention)
    torch.nn.Module.__init__(layer)
    layer.attn_type, layer.kv_cache_dtype = AttentionType.DECODER, "auto"
    layer.kv_cache_torch_dtype = torch.bfloat16
    layer.attn_backend, layer.sliding_window, layer.num_kv_heads = backend, WINDOW, 4
    layer.head_size = layer.head_size_v = 128
    layer.is_draft_layer = True
    return layer.get_kv_cache_spec(N(cache_config=N(block_size=block, skip_page_size_padded=None)))


def specs(block: int) -> dict[str, Any]:
    """Specs of all layers: 34 KDA, 11 MLA each with indexer and tail ring, 5 drafter layers."""
    from vllm.v1.kv_cache_interface import CircularBufferSpec, MambaSpec, MLAAttentionSpec

    found: dict[str, Any] = {}
    shapes = ((3 + DRAFTS, 3 * 32 * 128), (32, 128, 128))
    for i in range(34):
        found[f"kda.{i}"] = MambaSpec(
            block_size=block,
            shapes=shapes,
            dtypes=(torch.bfloat16, torch.float32),
            mamba_cache_mode="align",
            num_speculative_blocks=DRAFTS,
            num_prefill_checkpoint_blocks=1,
        )
    for i in range(11):
        common: dict[str, Any] = {"block_size": block, "num_kv_heads": 1, "cache_dtype_str": "fp8_ds_mla"}
        found[f"mla.{i}"] = MLAAttentionSpec(
            head_size=656, state_content_bytes=656, dtype=torch.uint8, **common
        )
        found[f"index.{i}"] = MLAAttentionSpec(
            head_size=132, state_content_bytes=132, tokens_per_state=4, dtype=torch.uint8, **common
        )
        found[f"tail.{i}"] = CircularBufferSpec(
            block_size=16, num_kv_heads=1, head_size=128, dtype=torch.bfloat16
        )
    for i in range(5):
        found[f"draft.{i}"] = draft_spec(block)
    return found


def configuration() -> Any:
    """The fields of vLLM's configuration that planning reads."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    layout = KVCacheLayout.BLHNC
    cache = N(
        get_resolved_kv_cache_layout=lambda: layout,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        prefix_match_unit=None,
        prefix_cache_retention_interval=None,
        num_gpu_blocks_override=None,
        block_size=4608,
    )
    return N(
        scheduler_config=N(disable_hybrid_kv_cache_manager=False),
        cache_config=cache,
        speculative_config=None,
        attention_config=N(hisparse_config=None),
        kv_transfer_config=None,
        parallel_config=N(decode_context_parallel_size=1, tensor_parallel_size=2),
        model_config=N(max_model_len=LIMIT),
        max_in_flight_tokens=2 * CHUNK,
    )


def disjoint(config: Any) -> bool:
    """Whether no two pages of one group share a byte and all lie inside the pool, for the first blocks."""
    for group in config.kv_cache_groups:
        names = set(group.layer_names)
        spans = []
        for tensor in config.kv_cache_tensors:
            for at, name in enumerate(tensor.layers):
                if name not in names:
                    continue
                spec = group.kv_cache_spec
                page = getattr(spec, "kv_cache_specs", {name: spec})[name].page_size_bytes
                for block in (0, 1, 2, config.num_blocks - 1):
                    start = tensor.offset + at * tensor.layer_stride + block * tensor.block_stride
                    spans.append((start, start + page))
                    if start + page > tensor.size:
                        return False
        spans.sort()
        if any(a[1] > b[0] for a, b in itertools.pairwise(spans)):
            return False
    return True


def serve(config: Any, scheduler_block: int, hash_block: int) -> dict[str, Any]:
    """One long request, then the same prompt again: which drafter rows are there when they are read?"""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    manager = KVCacheManager(
        kv_cache_config=config,
        max_model_len=LIMIT,
        scheduler_block_size=scheduler_block,
        hash_block_size=hash_block,
        max_in_flight_tokens=2 * CHUNK,
        enable_caching=True,
    )
    at = next(i for i, g in enumerate(config.kv_cache_groups) if g.layer_names[0].startswith("draft"))
    size = config.kv_cache_groups[at].kv_cache_spec.block_size
    lost, most, shared, hits = 0, 0, 0, []

    def look(request: Any, first: int, last: int) -> None:
        """Rows that a step over positions first..last reads or writes: all must be in a block of its own."""
        nonlocal lost, most, shared
        groups = manager.get_block_ids(request.request_id)
        table = groups[at]
        for position in range(max(0, first - WINDOW + 1), last + 1):
            lost += position // size >= len(table) or table[position // size] == 0
        live = [block for block in table if block]
        most = max(most, len(live))
        others = [b for i, g in enumerate(groups) if i != at for b in g if b]
        shared += len(set(live)) != len(live) or bool(set(live) & set(others))

    prompt = [i % 1000 for i in range(30_000)]
    for number in range(2):
        request = Request(
            request_id=f"r{number}",
            prompt_token_ids=prompt,
            pooling_params=None,
            sampling_params=SamplingParams(max_tokens=8000),
            block_hasher=get_request_block_hasher(hash_block, sha256),
        )
        blocks, done = manager.get_computed_blocks(request)[:2]
        hits.append(done)
        fresh: tuple[Any, ...] = (done, blocks)
        while done < len(prompt):
            count = min(CHUNK, len(prompt) - done)
            if count < len(prompt) - done:  # a chunk ends on a block: the state is kept there
                count = (done + count) // scheduler_block * scheduler_block - done or count
            manager.new_step_starts()
            assert manager.allocate_slots(request, count, *fresh) is not None
            look(request, done, done + count - 1)
            fresh = ()
            done += count
            request.num_computed_tokens = done
        for step in range(1200):  # verify steps of 1 + 7 rows of which 1 to 8 stay
            request.append_output_token_ids([step % 7] * (1 + step % 8))
            manager.new_step_starts()
            lead = request.num_tokens - request.num_computed_tokens
            assert manager.allocate_slots(request, lead + DRAFTS, num_lookahead_tokens=DRAFTS) is not None
            if step % 50 == 0:
                look(request, request.num_computed_tokens, request.num_tokens + DRAFTS - 1)
            request.num_computed_tokens = request.num_tokens
        manager.free(request)
    left = manager.block_pool.get_num_free_blocks()
    return {
        "lost": lost,
        "most": most,
        "shared": shared,
        "hits": hits,
        "leaked": config.num_blocks - 1 - left,
    }


def look() -> dict[str, Any]:
    """Plan, check, serve."""
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, resolve_kv_cache_block_sizes

    asked = configuration()
    planned = get_kv_cache_config_from_groups(asked, get_kv_cache_groups(asked, specs(4608)), POOL)
    scheduler_block, hash_block = resolve_kv_cache_block_sizes(planned, asked)
    return {
        "blocks": planned.num_blocks,
        "stride": max(t.block_stride for t in planned.kv_cache_tensors),
        "sizes": [scheduler_block, hash_block],
        "disjoint": disjoint(planned),
        **serve(generate_scheduler_kv_cache_config([planned]), scheduler_block, hash_block),
    }


def main() -> None:
    """Stock, then with the hook."""
    from sparkloom.vllm.hooks import install

    stock = look()
    install()
    print("FOUND", json.dumps([stock, look()]))


if __name__ == "__main__":
    main()

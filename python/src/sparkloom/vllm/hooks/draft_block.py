"""A smaller cache block for the drafter, so that its pages do not set the stride of the whole pool.

Why: all cache groups draw from one pool whose blocks are as wide as the widest group's. At GLM's sizes (two
ranks, 7 drafts) the drafter's five sliding-window layers take 47.2 MB a block of 4608 tokens, all other
groups at most 34.9 MB. With 2304 tokens a drafter block takes 23.6 MB: 35 % more pool blocks from the same
bytes.
Upstream: `Attention.get_kv_cache_spec` in `vllm/model_executor/layers/attention/attention.py` gives a
sliding-window layer the largest block that its backend can run; nothing sets another. Issue text: "A
sliding-window drafter next to an MLA + linear-attention target sets `bytes_per_block`: its layers take the
target's block size although its window is far smaller. Please take a `draft_block_size` in the speculative
config, or let the packed grouping split the drafter's block until it no longer is the widest group."
Default off (`draft_kv_block_tokens` unset). Drop when: vLLM has such an option.
Tested: the planner, the cache manager and the addresses of vLLM 0.33.0 at the true sizes
(tests/patches/test_draft_block.py). On an H200 with a tiny model (docs/receipts, row draft-block): 4,888
blocks instead of 2,647, the same tokens, as many drafts accepted. Not run at the true sizes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkloom.vllm.hooks.shape import HookRefused, expect_attribute, expect_parameters


def smaller(spec: Any, manager: int, wanted: int) -> Any:
    """A sliding-window spec with blocks of `wanted` tokens.

    Args:
        spec: what vLLM made; a dataclass with `block_size` and `page_size_padded`.
        manager: tokens of the manager block (`cache_config.block_size`).
        wanted: tokens of the drafter's block.

    Raises:
        HookRefused: `wanted` does not divide both blocks, or vLLM already pads the page to another group's.
    """
    if manager % wanted or spec.block_size % wanted:
        good = [n for n in range(256, min(manager, spec.block_size) + 1, 16) if not manager % n]
        raise HookRefused(
            f"draft_kv_block_tokens: {wanted} does not divide the manager block of {manager} tokens "
            f"and the drafter's of {spec.block_size}; take one of {good}, or null"
        )
    if spec.page_size_padded is not None:
        raise HookRefused("draft_kv_block_tokens: vLLM pads the drafter's page; set the option to null")
    return dataclasses.replace(spec, block_size=wanted)


def install(value: object) -> None:
    """Shrink the block of every sliding-window layer of a draft model."""
    from vllm.model_executor.layers.attention.attention import Attention

    wanted = int(str(value))
    if wanted % 16:
        raise HookRefused(f"draft_kv_block_tokens: {wanted} is no multiple of 16, which the kernels need")
    layer: Any = Attention
    expect_attribute("draft_kv_block_tokens", layer, "is_draft_layer")
    original = layer.get_kv_cache_spec
    expect_parameters("draft_kv_block_tokens", original, "vllm_config")

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = original(self, vllm_config)
        if not self.is_draft_layer or getattr(spec, "sliding_window", None) is None:
            return spec
        return smaller(spec, vllm_config.cache_config.block_size, wanted)

    layer.get_kv_cache_spec = get_kv_cache_spec

"""A request may say that its prompt must not be written to the prefix cache.

Why: one-off prompts (evaluations, secrets, very long documents read once) evict the conversations that come
back. vLLM has `skip_reading_prefix_cache` but no counterpart for writing.
How: `"vllm_xargs": {"skip_writing_prefix_cache": 1}` in the request's body.
Upstream: `KVCacheCoordinator.cache_blocks` in `vllm/v1/core/kv_cache_coordinator.py`; issue text: "There is
`skip_reading_prefix_cache` but nothing for writing. Please add `skip_writing_prefix_cache`, so that one-off
prompts do not evict conversations that come back."
Tested: vLLM's own cache manager with and without the hook (tests/vllm/hooks). On a GPU: the same long
prompt twice with the wish: no cached token in the second answer's usage.
Default on (it does nothing for a request that does not ask). Drop when: vLLM has the counterpart.
"""

from __future__ import annotations

from typing import Any

from sparkloom.vllm.hooks.shape import expect_parameters

KEY = "skip_writing_prefix_cache"


def declines(request: Any) -> bool:
    """Whether a request asks not to be stored."""
    extra = getattr(getattr(request, "sampling_params", None), "extra_args", None) or {}
    return str(extra.get(KEY, "")).lower() in ("1", "1.0", "true", "yes")


def install(_: object) -> None:
    """Leave the blocks of such a request without a hash: they are freed with it and found by nobody."""
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator

    coordinator: Any = KVCacheCoordinator
    original = coordinator.cache_blocks
    expect_parameters("per_request_no_store", original, "request", "num_computed_tokens")

    def cache_blocks(self: Any, request: Any, num_computed_tokens: int) -> None:
        if not declines(request):
            original(self, request, num_computed_tokens)

    coordinator.cache_blocks = cache_blocks

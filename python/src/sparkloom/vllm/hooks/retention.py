"""A request may ask that its conversation is evicted from the prefix cache after all others.

Why: vLLM evicts by age alone. A long conversation with pauses, or an agent's system prompt, loses its cache
to a burst of one-off requests, and its next turn pays for the whole prefill again.
How: `"vllm_xargs": {"keep_prefix": "NAME"}` in a request's body puts the blocks that it caches or hits into
the group NAME. Free blocks of kept groups are handed out last. They still count as free, so nothing waits or
is refused because of them. `keep_prefix_share` bounds them to a share of the pool; beyond it the group that
was unused for longest is given up, as is one unused for an hour.
Figures: at most once a minute the log says how many blocks and groups are kept, the limit, and how many were
declined or given up.
Upstream: `BlockPool.get_new_blocks` in `vllm/v1/core/block_pool.py`; issue text: "Prefix caching evicts by
age alone. Please let a request name a retention priority for its blocks; a bounded set that is skipped while
the free queue has others is enough, and keeps admission as it is."
Default off (`keep_prefix_share` unset). Drop when: vLLM has retention priorities.
Tested: the bookkeeping by properties, and vLLM's own cache manager with a full pool (tests/vllm/hooks). It
lives in the scheduler and touches no device, so a GPU adds nothing.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from sparkloom.vllm.hooks.retention_book import Book
from sparkloom.vllm.hooks.shape import HookRefused, expect_attribute, expect_parameters

HOOK, KEY = "keep_prefix_share", "keep_prefix"
IDLE_SECONDS = 3600.0
REPORT_SECONDS = 60.0
LONGEST_NAME = 128

logger = logging.getLogger("vllm.sparkloom")


def group_of(request: Any) -> str | None:
    """The group that a request names; None for none or a name that is no short text."""
    extra = getattr(getattr(request, "sampling_params", None), "extra_args", None) or {}
    name = extra.get(KEY)
    return name if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME else None


def figures(pool: Any) -> dict[str, int]:
    """Blocks and groups that are kept, the limit, blocks beyond it, groups given up."""
    book: Book = pool.sparkloom_book
    return {
        "blocks": len(book),
        "groups": len(book.groups),
        "limit": book.limit,
        "declined": book.declined,
        "demoted": book.demoted,
    }


def spare_kept(pool: Any, wanted: int) -> None:
    """Move kept blocks from the head of the free queue to its end, until `wanted` others are in front.

    Where there are too few others, all kept ones are moved once: they are then taken, the oldest first.
    """
    book: Book = pool.sparkloom_book
    if not len(book):
        return
    queue = pool.free_block_queue
    tail = queue.fake_free_list_tail
    block, found, kept = queue.fake_free_list_head.next_free_block, 0, []
    while found < wanted and block is not tail:
        if block.block_id in book:
            kept.append(block)
        else:
            found += 1
        block = block.next_free_block
    for block in kept:
        queue.remove(block)
    queue.append_n(kept)


def install(value: object) -> None:
    """Keep a book in every block pool, and look into it where blocks are handed out.

    Raises:
        HookRefused: the share is not between 0 and 0.9, or upstream changed.
    """
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

    share = float(str(value))
    if not 0 < share <= 0.9:
        raise HookRefused(f"{HOOK}: {share} is not in (0, 0.9]")
    pool: Any = BlockPool
    manager: Any = KVCacheManager
    queue: Any = FreeKVCacheBlockQueue
    for name in ("remove", "append_n"):
        expect_attribute(HOOK, queue, name)
    for name in ("_remove_cached_block_hashes", "reset_prefix_cache"):
        expect_attribute(HOOK, pool, name)
    expect_parameters(HOOK, pool.get_new_blocks, "num_blocks")
    expect_parameters(
        HOOK, pool.cache_full_blocks, "request", "blocks", "num_cached_blocks", "num_full_blocks"
    )
    expect_parameters(HOOK, manager.free, "request")
    expect_parameters(HOOK, manager.pop_blocks_for_free, "request")
    init, get, cache = pool.__init__, pool.get_new_blocks, pool.cache_full_blocks
    remove, reset = pool._remove_cached_block_hashes, pool.reset_prefix_cache
    free, pop = manager.free, manager.pop_blocks_for_free

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.sparkloom_book = Book(int(share * self.num_gpu_blocks), IDLE_SECONDS)
        self.sparkloom_reported = time.monotonic()

    def get_new_blocks(self: Any, num_blocks: int) -> Any:
        spare_kept(self, num_blocks)
        return get(self, num_blocks)

    def note(self: Any, request: Any, blocks: Any) -> None:
        if (group := group_of(request)) is None:
            return
        now = time.monotonic()
        hashed = [b.block_id for b in blocks if b.block_hash is not None and not b.is_null]
        self.sparkloom_book.keep(group, hashed, now)
        if now - self.sparkloom_reported > REPORT_SECONDS:
            self.sparkloom_reported = now
            logger.info("sparkloom: kept prefixes %s", figures(self))

    def cache_full_blocks(
        self: Any,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        answer = cache(self, request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
        note(self, request, blocks[num_cached_blocks:num_full_blocks])
        return answer

    def _remove_cached_block_hashes(self: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
        self.sparkloom_book.drop(block.block_id)
        return remove(self, block, *args, **kwargs)

    def reset_prefix_cache(self: Any) -> bool:
        done = bool(reset(self))
        if done:
            self.sparkloom_book.clear()
        return done

    def note_all(self: Any, request: Any) -> None:
        """What the request hit belongs to its group as well."""
        if group_of(request) is not None:
            for blocks in self.get_blocks(request.request_id).blocks:
                note(self.block_pool, request, blocks)

    def free_request(self: Any, request: Any) -> Any:
        note_all(self, request)
        return free(self, request)

    def pop_blocks_for_free(self: Any, request: Any) -> Any:
        note_all(self, request)
        return pop(self, request)

    pool.__init__, pool.get_new_blocks, pool.cache_full_blocks = start, get_new_blocks, cache_full_blocks
    pool._remove_cached_block_hashes, pool.reset_prefix_cache = (
        _remove_cached_block_hashes,
        reset_prefix_cache,
    )
    manager.free, manager.pop_blocks_for_free = free_request, pop_blocks_for_free

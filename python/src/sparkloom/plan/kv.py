"""How vLLM 0.33 lays out the KV pool for this hybrid model, as pure functions of the geometry.

All cache groups share one pool of blocks. A block of any group takes the stride of the largest group, so what
counts is block ids, not bytes per token: a running request holds state blocks of the linear layers, a cached
conversation holds one block of every group per checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sparkloom.plan.geometry import DFLASH2, FP32, GLM_FLASH, DraftGeometry, Geometry

MLA_ROW_BYTES = 656  # fp8_ds_mla: 512 fp8 + 16 of scales + 128 of rope padding that NoPE leaves zero
INDEX_SCALE_BYTES = 4
TAIL_VALUES = 2  # the tail ring keeps key and gate score, bf16
BLOCK_GRAIN = 256
STEPS_IN_FLIGHT = 2  # asynchronous scheduling: a step's blocks are freed while the next one runs
DENSE = -1  # retention: keep a checkpoint at every block


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose caches share block ids."""

    name: str
    layers: int
    block_tokens: int
    bytes_per_block: int
    prefix_cacheable: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """The pool's layout on one rank.

    Args:
        block_tokens: tokens of one manager block, which is also the grain of prefix hits.
        stride_bytes: bytes of one pool block, whatever group uses it.
        state_blocks: blocks that every running request reserves for the linear layers.
        draft_blocks: blocks that an answering request holds for the drafter's window.
        draft_prefill_blocks: the same while its prompt is computed, at most.
        tail_blocks: blocks that every running request holds for the indexer's ring of raw keys.
        draft_blocks_cached: drafter blocks that a kept checkpoint costs.
        token_bytes: bytes per token of context in the groups that grow with it.
    """

    groups: tuple[Group, ...]
    block_tokens: int
    stride_bytes: int
    state_groups: int
    state_blocks: int
    draft_blocks: int
    draft_prefill_blocks: int
    draft_blocks_cached: int
    tail_blocks: int
    token_bytes: int

    @property
    def blocks_per_segment(self) -> int:
        """Pool blocks of one block of context that is cached with all groups: 5 with DFlash2."""
        return 1 + self.state_groups + self.draft_blocks_cached

    @property
    def reserved_blocks(self) -> int:
        """Blocks of a running request that do not depend on its length."""
        return self.state_blocks + self.draft_blocks + self.tail_blocks

    def request_blocks(self, tokens: int) -> int:
        """Pool blocks that one answering request of `tokens` holds."""
        return self.reserved_blocks + ceil(tokens / self.block_tokens)

    def needed_blocks(self, context: int, sequences: int) -> int:
        """Blocks for one prompt of `context` tokens while `sequences - 1` short requests run, and block 0.

        Block 0 is vLLM's null block and never given out.
        """
        prompt = self.request_blocks(context) - self.draft_blocks + self.draft_prefill_blocks
        return 1 + prompt + (sequences - 1) * self.request_blocks(1)

    def needed_bytes(self, context: int, sequences: int) -> int:
        """Pool bytes for `needed_blocks`."""
        return self.needed_blocks(context, sequences) * self.stride_bytes

    def pool_blocks(self, pool_bytes: int) -> int:
        """Blocks that a pool of so many bytes has, block 0 included."""
        return pool_bytes // self.stride_bytes

    def largest_context(self, pool_bytes: int, sequences: int, limit: int) -> int:
        """Longest context that one request may have beside `sequences - 1` short ones; 0 when none fits."""
        spare = self.pool_blocks(pool_bytes) - self.needed_blocks(1, sequences) + 1
        return max(0, min(limit, spare * self.block_tokens))

    def conversation_blocks(self, tokens: int, retention: int = 0) -> int:
        """Blocks that a finished conversation of `tokens` keeps in the prefix cache.

        Args:
            tokens: length of the conversation.
            retention: 0 keeps one checkpoint at the end, R > 0 one more every R tokens, DENSE one per block.
        """
        blocks = tokens // self.block_tokens
        if not blocks:
            return 0
        if retention == DENSE:
            checkpoints = blocks
        else:
            checkpoints = 1 + (tokens // max(retention, self.block_tokens) if retention else 0)
        return blocks + min(checkpoints, blocks) * (self.state_groups + self.draft_blocks_cached)

    def cached_tokens(self, free_blocks: int, retention: int = 0) -> int:
        """Tokens of conversation that stay cached in `free_blocks`: one long conversation, whole blocks."""
        low, high = 0, max(0, free_blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if self.conversation_blocks(middle * self.block_tokens, retention) <= free_blocks:
                low = middle
            else:
                high = middle - 1
        return low * self.block_tokens

    def conversations(self, free_blocks: int, tokens: int, retention: int = 0) -> int:
        """How many conversations of `tokens` stay cached at once in `free_blocks`."""
        each = self.conversation_blocks(tokens, retention)
        return free_blocks // each if each else 0


def kda_state_bytes(g: Geometry, world: int, draft_tokens: int) -> int:
    """State of one linear layer, one request, one rank: 2,342,912 bytes at two ranks and 7 drafts.

    The convolution keeps kernel - 1 + drafts columns of q, k and v in bf16; the recurrent state is fp32.
    """
    inner = g.local(g.heads, world) * g.kda_head_dim
    convolution = (g.conv_kernel - 1 + draft_tokens) * 3 * inner * 2
    recurrent = inner * g.kda_head_dim * FP32
    return convolution + recurrent


def block_tokens(g: Geometry, world: int, draft_tokens: int) -> int:
    """Tokens of the manager block: as many latent rows (fp8, 512 bytes) as fill one linear layer's state.

    vLLM counts 512 bytes a row here, not the 656 that it stores, and rounds up to a multiple of 256.
    """
    rows = ceil(kda_state_bytes(g, world, draft_tokens) / g.kv_lora)
    return ceil(rows / BLOCK_GRAIN) * BLOCK_GRAIN


def index_bytes_per_token(g: Geometry) -> float:
    """Indexer cache: one pooled fp8 key and its scale per `index_pool` tokens (33 bytes a token)."""
    return (g.index_dim + INDEX_SCALE_BYTES) / g.index_pool


def tail_slots(g: Geometry, draft_tokens: int) -> int:
    """Ring of raw keys that are not pooled yet: 16 slots with 7 drafts."""
    units = ceil((g.index_pool + draft_tokens) / g.index_pool)
    return int(g.index_pool * (1 << (units - 1).bit_length()))


def repeats(counts: list[int], lowest: int) -> int:
    """Layers per group with the least padding over all kinds of layers; the larger one on a tie."""
    best, padding = lowest, None
    for size in range(lowest, max(counts) + 1):
        pad = sum(-count % size for count in counts)
        if padding is None or pad <= padding:
            best, padding = size, pad
    return best


def layout(
    world: int,
    drafter: str,
    draft_tokens: int,
    *,
    prefix_caching: bool = True,
    batched_tokens: int = 7168,
    draft_block_tokens: int | None = None,
    g: Geometry = GLM_FLASH,
    d: DraftGeometry = DFLASH2,
) -> Layout:
    """The KV layout of one rank.

    Args:
        world: tensor-parallel size.
        drafter, draft_tokens: `dflash2`, `mtp` or `none`, and proposals per step.
        prefix_caching: decides how many states a request reserves.
        batched_tokens: tokens of one step, which widen the drafter's window.
        draft_block_tokens: block of the drafter; the manager block when None.
    """
    block = block_tokens(g, world, draft_tokens)
    state = kda_state_bytes(g, world, draft_tokens)
    mla_layers = g.mla_layers + (drafter == "mtp")
    token_bytes = mla_layers * (MLA_ROW_BYTES + index_bytes_per_token(g))
    mla = Group("mla and indexer", 2 * mla_layers, block, int(block * token_bytes))
    slots = tail_slots(g, draft_tokens)
    tail_bytes = mla_layers * slots * g.index_dim * TAIL_VALUES * 2
    tail = Group("indexer tail", mla_layers, slots, tail_bytes, prefix_cacheable=False)
    groups = [mla, tail]
    counts = [mla_layers, g.kda_layers, mla_layers]
    draft_blocks = draft_prefill = draft_cached = 0
    if drafter == "dflash2":
        size = draft_block_tokens or block
        per_token = d.kv_bytes_per_token(world)
        groups.append(Group("drafter window", d.layers, size, d.layers * size * per_token))
        counts.append(d.layers)
        draft_blocks = ceil((d.window + draft_tokens) / size) + 1
        draft_prefill = ceil((d.window - 1 + STEPS_IN_FLIGHT * batched_tokens) / size) + 1
        draft_cached = min(block // size, ceil((d.window - 1) / size) + 1)
    anchor = max(group.bytes_per_block for group in groups)
    wanted = ceil(g.kda_layers / repeats(counts, mla_layers))
    state_groups = max(wanted, ceil(g.kda_layers / (anchor // state)))
    for i in range(state_groups):
        layers = len(range(i, g.kda_layers, state_groups))
        groups.append(Group(f"kda {i + 1}", layers, block, layers * state))
    per_group = (2 + draft_tokens + 1) if prefix_caching else (1 + draft_tokens)
    return Layout(
        groups=tuple(groups),
        block_tokens=block,
        stride_bytes=max(group.bytes_per_block for group in groups),
        state_groups=state_groups,
        state_blocks=state_groups * per_group,
        draft_blocks=draft_blocks,
        draft_prefill_blocks=max(draft_blocks, draft_prefill),
        draft_blocks_cached=draft_cached,
        tail_blocks=1,
        token_bytes=round(token_bytes),
    )

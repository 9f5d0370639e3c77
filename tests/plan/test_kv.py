"""The KV pool model against what vLLM 0.33's own planner gave for this model (two ranks, 7 drafts)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom.plan import geometry as geo
from sparkloom.plan import kv

DFLASH = kv.layout(2, "dflash2", 7)


def test_state_of_one_linear_layer() -> None:
    assert kv.kda_state_bytes(geo.GLM_FLASH, 2, 7) == 245_760 + 2_097_152 == 2_342_912


def test_block_is_4608_tokens() -> None:
    assert DFLASH.block_tokens == 4608


def test_groups() -> None:
    found = {g.name: (g.layers, g.block_tokens, g.bytes_per_block) for g in DFLASH.groups}
    assert found["kda 1"] == (12, 4608, 28_114_944)
    assert found["kda 2"] == found["kda 3"] == (11, 4608, 25_772_032)
    assert found["mla and indexer"] == (22, 4608, 34_924_032)
    assert found["indexer tail"] == (11, 16, 90_112)
    assert found["drafter window"] == (5, 4608, 47_185_920)
    assert not next(g for g in DFLASH.groups if g.name == "indexer tail").prefix_cacheable


def test_drafter_sets_the_stride() -> None:
    assert DFLASH.stride_bytes == 47_185_920


def test_segment_and_state_costs() -> None:
    assert DFLASH.blocks_per_segment == 5
    assert DFLASH.blocks_per_segment * DFLASH.stride_bytes == pytest.approx(236e6, rel=0.01)
    assert DFLASH.state_blocks == 30
    assert DFLASH.state_blocks * DFLASH.stride_bytes == pytest.approx(1.42e9, rel=0.01)
    assert DFLASH.draft_blocks in (2, 3)


def test_a_pool_of_25_gb() -> None:
    blocks = DFLASH.pool_blocks(25_000_000_000)
    assert blocks == pytest.approx(530, abs=1)
    rest = blocks - 4 * DFLASH.state_blocks
    assert rest * DFLASH.block_tokens == pytest.approx(1.9e6, rel=0.02)
    assert rest // DFLASH.blocks_per_segment == pytest.approx(80, abs=3)


@pytest.mark.parametrize("block", [2304, 1536])
def test_smaller_draft_block_lowers_the_stride(block: int) -> None:
    small = kv.layout(2, "dflash2", 7, draft_block_tokens=block)
    assert small.stride_bytes == 34_924_032
    assert small.block_tokens == 4608
    assert DFLASH.stride_bytes / small.stride_bytes == pytest.approx(1.35, abs=0.01)


def test_draft_block_of_64_is_a_trap() -> None:
    """33 window blocks per segment, as in the recipe whose segments cost 38 ids (four state groups)."""
    small = kv.layout(2, "dflash2", 7, draft_block_tokens=64)
    assert small.draft_blocks_cached == 33
    assert 1 + 4 + small.draft_blocks_cached == 38


def test_without_the_drafter_the_latent_group_sets_the_stride() -> None:
    plain = kv.layout(2, "none", 7)  # 7 only to compare at the same block
    assert plain.stride_bytes == 34_924_032
    assert plain.draft_blocks == plain.draft_blocks_cached == 0


def test_prefix_caching_costs_states() -> None:
    assert kv.layout(2, "dflash2", 7, prefix_caching=False).state_blocks == 3 * 8


def test_expert_bytes_of_one_rank() -> None:
    assert geo.expert_bytes(geo.GLM_FLASH, 2) / 2**30 == pytest.approx(71.22, abs=0.005)


def test_all_weights_of_one_rank_are_in_the_published_range() -> None:
    g = geo.GLM_FLASH
    total = (
        geo.expert_bytes(g, 2)
        + g.kda_layers * geo.kda_bytes(g, 2)
        + g.mla_layers * geo.mla_bytes(g, 2)
        + geo.dense_bytes(g, 2)
        + geo.embedding_bytes(g, 2)
        + geo.stream_bytes(g)
        + geo.vision_bytes(g, 2)
        + geo.DFLASH2.bytes // 2
    )
    assert 79.65 <= total / 2**30 <= 82.06


def test_two_conversations_evict_each_other_by_ids_not_bytes() -> None:
    """Dense checkpoints cost five ids a segment; sparse ones keep several times as many tokens."""
    blocks = 300
    dense = DFLASH.cached_tokens(blocks, kv.DENSE)
    sparse = DFLASH.cached_tokens(blocks, 0)
    assert dense == 60 * 4608
    assert sparse == (blocks - 4) * 4608
    each = 140_000
    assert DFLASH.conversations(blocks, each, kv.DENSE) == 2
    assert DFLASH.conversations(blocks, each + 3 * 4608, kv.DENSE) == 1
    assert DFLASH.conversations(blocks, each, 0) > 4


@settings(deadline=None)
@given(
    st.integers(1, 8),
    st.sampled_from([("dflash2", 7), ("dflash2", 3), ("mtp", 2), ("none", 0)]),
    st.integers(1, 64),
    st.integers(1, 1_048_576),
    st.integers(0, 1 << 38),
)
def test_largest_context_is_the_largest(
    world: int, drafter: tuple[str, int], sequences: int, limit: int, pool: int
) -> None:
    layout = kv.layout(world, *drafter)
    largest = layout.largest_context(pool, sequences, limit)
    assert 0 <= largest <= limit
    blocks = layout.pool_blocks(pool)
    if largest:
        assert layout.needed_blocks(largest, sequences) <= blocks
    if largest < limit:
        assert layout.needed_blocks(largest + 1, sequences) > blocks


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(0, 20))
def test_cached_tokens_fit_and_one_block_more_does_not(blocks: int, steps: int) -> None:
    retention = steps * DFLASH.block_tokens
    tokens = DFLASH.cached_tokens(blocks, retention)
    assert DFLASH.conversation_blocks(tokens, retention) <= blocks
    assert DFLASH.conversation_blocks(tokens + DFLASH.block_tokens, retention) > blocks

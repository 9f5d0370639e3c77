"""The KV layout of a cluster file, without anything else of the plan (the file's checks need it)."""

from __future__ import annotations

from sparkloom.cluster.settings import Settings
from sparkloom.cluster.types import Cluster
from sparkloom.plan.kv import Layout, layout


def layout_of(cluster: Cluster, final: Settings) -> Layout:
    """The layout of one rank of `cluster` with the final values `final`."""
    return layout(
        cluster.world,
        final.drafter.value,
        final.draft_tokens,
        prefix_caching=final.prefix_caching,
        batched_tokens=final.max_batched_tokens,
        draft_block_tokens=cluster.patches.draft_kv_block_tokens,
    )

"""How much conversation stays cached; the engine's "KV cache size" is concurrency times context."""

from __future__ import annotations

from collections.abc import Iterable

from sparkloom.cluster import Cluster, settings
from sparkloom.errors import SparkloomError
from sparkloom.plan import kv_bytes, layout_for


def cached_conversation_tokens(cluster: Cluster, kv_gib: Iterable[float | None]) -> int | None:
    """Tokens of one conversation that the prefix cache keeps when idle, by the memory plan's layout.

    Args:
        kv_gib: KV memory that each rank's log names; the smallest binds. Without any, the file's own size.

    None for a model whose layout the plan does not know.
    """
    if cluster.model.geometry.value != "glm-5.3-flash":
        return None
    known = [g for g in kv_gib if g]
    try:
        layout = layout_for(cluster)
        pool = int(min(known) * 2**30) if known else kv_bytes(cluster)
    except SparkloomError:
        return None
    blocks = max(0, layout.pool_blocks(pool) - 1)
    return layout.cached_tokens(blocks, settings(cluster).prefix_cache_retention_tokens)

"""The plan: sum up every node, name the one that binds, and say what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkloom.cluster.settings import settings
from sparkloom.cluster.types import Cluster
from sparkloom.findings import Finding, ok, warn
from sparkloom.plan import geometry as geo
from sparkloom.plan.free import Free
from sparkloom.plan.kv import Layout
from sparkloom.plan.needs import KV_ITEM, Item, indexer_workspace, kv_bytes, layout_for, needs

FITS = "fits"
DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node's sum, in bytes."""

    name: str
    items: tuple[Item, ...]
    free: Free

    @property
    def need_bytes(self) -> int:
        """Sum of all items."""
        return sum(item.bytes for item in self.items)

    @property
    def spare_bytes(self) -> int:
        """What is left; negative when it does not fit."""
        return self.free.free_bytes - self.need_bytes

    @property
    def fits(self) -> bool:
        """Whether the sum is within what is free."""
        return self.spare_bytes >= 0

    @property
    def kv_room(self) -> int:
        """What a KV pool could have at most on this node."""
        pool = sum(item.bytes for item in self.items if item.what == KV_ITEM)
        return max(0, self.spare_bytes + pool)

    def as_dict(self) -> dict[str, Any]:
        """The node as `sparkloom plan --format json` prints it."""
        return {
            "name": self.name,
            "items": [item.as_dict() for item in self.items],
            "need_bytes": self.need_bytes,
            "free_bytes": self.free.free_bytes,
            "fits": self.fits,
            "cuda_free_bytes": self.free.cuda_free,
            "total_bytes": self.free.total,
            "free_source": self.free.source,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a cluster."""

    nodes: tuple[NodePlan, ...]
    pool_bytes: int
    layout: Layout | None
    context: int
    sequences: int
    retention: int
    largest_context: int
    findings: tuple[Finding, ...]
    steps: tuple[str, ...]
    mends: tuple[str, ...]

    @property
    def binding(self) -> NodePlan:
        """The node with the least room."""
        return min(self.nodes, key=lambda node: node.spare_bytes)

    @property
    def fits(self) -> bool:
        """Whether every node has room."""
        return all(node.fits for node in self.nodes)

    @property
    def verdict(self) -> str:
        """`fits` or `does not fit`."""
        return FITS if self.fits else DOES_NOT_FIT

    def kv(self) -> dict[str, Any]:
        """Facts about the KV pool of one rank."""
        if self.layout is None:
            return {"pool_bytes": self.pool_bytes}
        layout = self.layout
        blocks = layout.pool_blocks(self.pool_bytes)
        reserved = self.sequences * layout.reserved_blocks + 1
        idle = max(0, blocks - 1)
        return {
            "pool_bytes": self.pool_bytes,
            "pool_blocks": blocks,
            "block_tokens": layout.block_tokens,
            "stride_bytes": layout.stride_bytes,
            "bytes_per_token": layout.token_bytes,
            "pool_bytes_per_token": round(layout.stride_bytes / layout.block_tokens),
            "state_blocks_per_request": layout.state_blocks,
            "state_bytes_per_request": layout.state_blocks * layout.stride_bytes,
            "draft_blocks_per_request": layout.draft_blocks,
            "tail_blocks_per_request": layout.tail_blocks,
            "reserved_blocks": min(reserved, blocks),
            "context_blocks": max(0, blocks - reserved),
            "blocks_per_cached_segment": layout.blocks_per_segment,
            "cached_conversation_tokens": layout.cached_tokens(idle, self.retention),
            "cached_conversation_tokens_while_busy": layout.cached_tokens(
                max(0, blocks - reserved), self.retention
            ),
            "largest_pool_bytes": min(node.kv_room for node in self.nodes),
            "groups": [
                {
                    "name": group.name,
                    "layers": group.layers,
                    "block_tokens": group.block_tokens,
                    "bytes_per_block": group.bytes_per_block,
                    "prefix_cacheable": group.prefix_cacheable,
                }
                for group in layout.groups
            ],
        }

    def as_dict(self) -> dict[str, Any]:
        """The plan as `sparkloom plan --format json` prints it."""
        return {
            "nodes": [node.as_dict() for node in self.nodes],
            "binding_node": self.binding.name,
            "kv": self.kv(),
            "largest_context": self.largest_context,
            "verdict": self.verdict,
            "context_tokens": self.context,
            "max_sequences": self.sequences,
            "steps": list(self.steps),
            "mends": list(self.mends),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def plan(cluster: Cluster, free: Mapping[str, Free], *, mend: bool = True) -> Plan:
    """Plan `cluster` with the free memory of each node by name.

    Args:
        cluster: a checked cluster file.
        free: node name -> free memory; every node must be there.
        mend: look for settings that would fit when these do not (costs some more sums).
    """
    final = settings(cluster)
    pool = kv_bytes(cluster)
    nodes = tuple(
        NodePlan(node.name, tuple(needs(cluster, node, pool)), free[node.name]) for node in cluster.ranks
    )
    layout = layout_for(cluster) if cluster.model.geometry.value == "glm-5.3-flash" else None
    first = Plan(
        nodes=nodes,
        pool_bytes=pool,
        layout=layout,
        context=final.context_tokens,
        sequences=final.max_sequences,
        retention=final.prefix_cache_retention_tokens,
        largest_context=_largest_context(cluster, nodes, layout),
        findings=tuple(_findings(nodes)),
        steps=tuple(_steps(cluster, nodes)),
        mends=(),
    )
    if first.fits or not mend:
        return first
    from sparkloom.plan.mends import mends

    return Plan(**{name: getattr(first, name) for name in Plan.__slots__} | {"mends": mends(cluster, free)})


def _largest_context(cluster: Cluster, nodes: tuple[NodePlan, ...], layout: Layout | None) -> int:
    """Longest context that fits on the smallest node with everything else as it is.

    The indexer's workspace grows with the context too, so its bytes are given back and solved for.
    """
    final = settings(cluster)
    if layout is None:
        return final.context_tokens if all(node.fits for node in nodes) else 0
    g, factor = geo.GLM_FLASH, cluster.serving.attention_workspace_factor
    fixed = indexer_workspace(g, final.context_tokens, factor)
    room = min(node.kv_room for node in nodes) + fixed
    pinned = cluster.serving.kv_cache_bytes

    def fits(context: int) -> bool:
        pool = layout.needed_bytes(context, final.max_sequences)
        if pinned is not None:
            return pool <= pinned and pinned + indexer_workspace(g, context, factor) <= room
        return pool + indexer_workspace(g, context, factor) <= room

    low, high = 0, g.max_context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _findings(nodes: tuple[NodePlan, ...]) -> list[Finding]:
    found = []
    for node in nodes:
        if loss := node.free.reserve_loss:
            found.append(
                warn(
                    "plan.min_free_kbytes",
                    f"{node.name}: vm.min_free_kbytes takes about {loss / 2**30:.1f} GiB from MemAvailable",
                    "remove the setting and reboot; the plan keeps the host floor by itself",
                )
            )
        if node.free.source.startswith("assumed"):
            found.append(
                warn(
                    "plan.assumed",
                    f"{node.name}: {node.free.free_bytes / 2**30:.1f} GiB free is assumed, not read",
                    f"run `cat /proc/meminfo` there and give --meminfo {node.name}=FILE",
                )
            )
    spread = [node.free.free_bytes for node in nodes if not node.free.source.startswith("assumed")]
    if len(spread) > 1 and max(spread) - min(spread) > 4 << 30:
        found.append(
            warn(
                "plan.twins",
                f"free memory differs by {(max(spread) - min(spread)) / 2**30:.1f} GiB between the nodes",
                "look for a desktop session or another service on the smaller node",
            )
        )
    return found or [ok("plan", "nothing unusual")]


def _steps(cluster: Cluster, nodes: tuple[NodePlan, ...]) -> list[str]:
    """What has to happen on the nodes before a start, in order."""
    steps = []
    for node in nodes:
        if node.fits and node.free.cuda_free < node.need_bytes:
            missing = (node.need_bytes - node.free.cuda_free) / 2**30
            verb = "drop clean page cache" if cluster.memory.drop_page_cache else "free memory"
            steps.append(
                f"{node.name}: {verb} ({missing:.1f} GiB short of MemFree now), then wait until MemFree "
                f"is at least {node.need_bytes / 2**30:.1f} GiB"
            )
    return steps

"""What one rank needs, item by item in bytes, each with the source of its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from sparkloom.cluster.nodes import Node, Role
from sparkloom.cluster.settings import Settings, settings, sourced
from sparkloom.cluster.types import Cluster
from sparkloom.plan import geometry as geo
from sparkloom.plan.kv import Layout
from sparkloom.plan.layouts import layout_of

EXL3_WORKSPACE_BYTES = 16 << 20
INDEXER_LOGITS_BYTES = 1045 << 20
INDEXER_LOGITS_FREED_BYTES = 538 << 20
WORKSPACE_ROWS = 1152 // 132  # vLLM sizes the indexer's buffer to fit in the latent workspace
PIXEL_COPIES = 2  # the processor's output and the engine's copy


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the sum."""

    what: str
    bytes: int
    source: str

    def as_dict(self) -> dict[str, Any]:
        """The item as `sparkloom plan --format json` prints it."""
        return {"what": self.what, "bytes": self.bytes, "source": self.source}


KV_ITEM = "KV pool"


def needs(cluster: Cluster, node: Node, kv_bytes: int) -> list[Item]:
    """All items of `node`'s rank, with a KV pool of `kv_bytes`. Items of zero bytes are left out."""
    values = {path: item.value for path, item in sourced(cluster).items()}
    final = settings(cluster)
    from sparkloom.plan.checkpoint import weight_items

    items = weight_items(cluster, final)
    if cluster.model.geometry.value == "glm-5.3-flash":
        items += _glm_engine(cluster, final, values)
    items.append(Item("engine init", values["memory.engine_init_bytes"], "memory.engine_init_bytes"))
    if final.cuda_graphs:
        each = values["memory.cuda_graph_bytes_per_size"]
        items.append(
            Item(
                "CUDA graphs",
                len(final.cuda_graph_sizes) * each,
                f"{len(final.cuda_graph_sizes)} sizes x memory.cuda_graph_bytes_per_size",
            )
        )
    if cluster.serving.loader.value == "instanttensor":
        items.append(Item("loader ring", values["memory.loader_ring_bytes"], "memory.loader_ring_bytes"))
    if final.vision and node.role is Role.head and final.processor_cache_bytes:
        items.append(Item("image cache", 2 * final.processor_cache_bytes, "vision.processor_cache_bytes x 2"))
    items.append(Item(KV_ITEM, kv_bytes, _kv_source(cluster, final)))
    items.append(Item("host floor", values["memory.host_floor_bytes"], "memory.host_floor_bytes"))
    return [item for item in items if item.bytes]


def _kv_source(cluster: Cluster, final: Settings) -> str:
    if cluster.serving.kv_cache_bytes is not None:
        return "serving.kv_cache_bytes"
    return f"{final.context_tokens} tokens and {final.max_sequences} sequences"


def kv_bytes(cluster: Cluster) -> int:
    """Bytes of the KV pool of every rank: as set, else what context and sequences need."""
    pool = settings(cluster).kv_cache_bytes
    assert pool is not None, "a checked cluster file always has a pool"
    return pool


def _glm_engine(cluster: Cluster, final: Settings, values: Mapping[str, Any]) -> list[Item]:
    g = geo.GLM_FLASH
    batched = final.max_batched_tokens
    scratch = batched * g.experts_per_token * g.hidden * geo.FP16 + EXL3_WORKSPACE_BYTES
    workspace = indexer_workspace(g, final.context_tokens, cluster.serving.attention_workspace_factor)
    items = [
        Item("EXL3 scratch", scratch, f"{batched} tokens x {g.experts_per_token} routes, plus 16 MiB"),
        Item("indexer workspace", workspace, "context x serving.attention_workspace_factor"),
    ]
    reserve = values["memory.activation_reserve_bytes"]
    if reserve is None:
        reserve = activation_bytes(cluster, final)
        items.append(Item("activation reserve", reserve, f"one step of {batched} tokens"))
    else:
        items.append(Item("activation reserve", reserve, "memory.activation_reserve_bytes"))
    if final.vision and (images := reserved_images(cluster, final, values["vision.max_images_in_flight"])):
        items.append(
            Item(
                "image reserve",
                images * image_bytes(final.max_image_tokens),
                f"{images} images x {final.max_image_tokens} tokens",
            )
        )
    return items


def activation_bytes(cluster: Cluster, final: Settings) -> int:
    """Peak of one step on one rank: residual streams, the widest mixer, logits of indexer and sampler."""
    g, world = geo.GLM_FLASH, cluster.world
    inner = g.local(g.heads, world) * g.kda_head_dim
    streams = 2 * g.streams * g.hidden * geo.BF16
    mixer = 10 * inner * geo.BF16  # q, k, v, gates, their fp32 copies and the output
    mlp = 3 * g.local(g.dense_width, world) * geo.BF16
    selection = ceil((g.index_topk + g.index_pool - 1) / 128) * 128 * 4
    per_token = streams + mixer + mlp + selection + 2 * g.hidden * geo.FP32
    freed = cluster.patches.free_indexer_logits
    indexer = INDEXER_LOGITS_FREED_BYTES if freed else INDEXER_LOGITS_BYTES
    rows = final.max_sequences * (final.draft_tokens + 1)
    sampler = 3 * rows * g.vocabulary * geo.FP32
    return final.max_batched_tokens * per_token + indexer + sampler


def indexer_workspace(g: geo.Geometry, context: int, factor: int) -> int:
    """Gather buffer of the sparse indexer: pooled keys with scales, `factor` times the context."""
    return context * WORKSPACE_ROWS * factor // g.index_pool * (g.index_dim + 4)


def reserved_images(cluster: Cluster, final: Settings, in_flight: int) -> int:
    """Images to reserve for: the largest single request, or what may be in flight over all requests."""
    request = final.max_images + final.max_videos * cluster.vision.max_video_frames
    return max(request, in_flight) if request else 0


def image_bytes(tokens: int) -> int:
    """Host memory of one prepared image: fp32 patches of 3 x 2 x 14 x 14, four per token, two copies.

    At 2048 tokens 77 MB; a full-size one of 8000 tokens takes 301 MB, and 33 of them once froze a host.
    """
    return tokens * 4 * (3 * 2 * 14 * 14) * geo.FP32 * PIXEL_COPIES


def layout_for(cluster: Cluster) -> Layout:
    """The KV layout that `cluster` gets."""
    return layout_of(cluster, settings(cluster))

"""Weights of one rank: from the model's geometry, corrected by the manifest or the files where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkloom.cluster.model import DrafterKind
from sparkloom.cluster.operation import Platform
from sparkloom.cluster.settings import Settings
from sparkloom.cluster.types import Cluster
from sparkloom.errors import Exit, SparkloomError
from sparkloom.plan import geometry as geo
from sparkloom.plan.needs import Item


def weight_items(cluster: Cluster, final: Settings) -> list[Item]:
    """Items of the weights of one rank."""
    if cluster.model.geometry.value == "glm-5.3-flash":
        return _glm(cluster, final)
    return _any_model(cluster)


def _glm(cluster: Cluster, final: Settings) -> list[Item]:
    g, world = geo.GLM_FLASH, cluster.world
    by = f"geometry, split over {world}" if world > 1 else "geometry"
    attention = g.kda_layers * geo.kda_bytes(g, world) + g.mla_layers * geo.mla_bytes(g, world)
    items = [
        Item("routed experts", geo.expert_bytes(g, world), f"{by}, {g.expert_bits} bit"),
        Item("attention", attention, f"{by}, {g.kda_layers} linear and {g.mla_layers} latent layers"),
        Item("dense layers", geo.dense_bytes(g, world) + geo.stream_bytes(g), by),
        Item("embedding and head", geo.embedding_bytes(g, world), by),
    ]
    if final.vision:
        items.append(Item("vision tower", geo.vision_bytes(g, world), by))
    if final.drafter is DrafterKind.dflash2:
        items.append(Item("drafter", geo.DFLASH2.bytes // world, f"DFlash2, 2.3 GiB over {world}"))
    elif final.drafter is DrafterKind.mtp:
        size = geo.mtp_layer_bytes(g, world) + geo.mtp_expert_bytes(g, world)
        items.append(Item("drafter", size, f"MTP layer, {by}"))
    more = _difference(cluster) // cluster.world
    if more > 0:
        items.append(Item("beyond the geometry", more, "size of the checkpoint's files"))
    elif cluster.patches.dense_quantization and _manifest(cluster).is_file():
        items = [_shrunk(item, -more, items) for item in items]
    return items


QUANTISABLE = ("attention", "dense layers", "embedding and head")


def _shrunk(item: Item, saved: int, items: list[Item]) -> Item:
    """An item of the dense layers less its part of what a quantised variant saves; any other as it is.

    Files that a half-finished download leaves out would look like a saving: only a manifest counts.
    """
    total = sum(other.bytes for other in items if other.what in QUANTISABLE)
    if item.what not in QUANTISABLE or saved <= 0:
        return item
    left = item.bytes - min(saved, total) * item.bytes // total
    return Item(item.what, left, f"{item.source}, less what the manifest's total saves")


def _difference(cluster: Cluster) -> int:
    """Bytes that the checkpoint has more than the geometry says (a variant with other types), all ranks."""
    total = manifest_bytes(cluster)
    if total is None:
        return 0
    g = geo.GLM_FLASH
    known = (
        geo.expert_bytes(g, 1)
        + g.kda_layers * geo.kda_bytes(g, 1)
        + g.mla_layers * (geo.mla_bytes(g, 1) - geo.BF16 * g.kv_lora * g.heads * (g.qk_dim + g.v_dim))
        + geo.dense_bytes(g, 1)
        + geo.stream_bytes(g)
        + geo.embedding_bytes(g, 1)
        + geo.vision_bytes(g, 1)
        + geo.mtp_layer_bytes(g, 1)
        + geo.mtp_expert_bytes(g, 1)
    )
    return total - known


def _manifest(cluster: Cluster) -> Path:
    return Path(cluster.model.manifest or Path(cluster.model.path) / "sparkloom-manifest.json")


def manifest_bytes(cluster: Cluster) -> int | None:
    """Bytes of all safetensors files by the manifest, else by the files; None when neither is here."""
    path = _manifest(cluster)
    if path.is_file():
        return _sum(path)
    shards = list(Path(cluster.model.path).glob("*.safetensors"))
    return sum(shard.stat().st_size for shard in shards) if shards else None


def _sum(path: Path) -> int:
    try:
        document: Any = json.loads(path.read_bytes())
        files = document["files"]
        rows = files.items() if isinstance(files, dict) else ((row["path"], row) for row in files)
        return sum(int(row["size"]) for name, row in rows if str(name).endswith(".safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SparkloomError(
            f"this is no manifest: {type(error).__name__} {error}",
            file=path,
            mend="write it again with `sparkloom weights verify`, or leave model.manifest out",
        ) from None


def _any_model(cluster: Cluster) -> list[Item]:
    total = manifest_bytes(cluster)
    if total is None:
        raise SparkloomError(
            "no checkpoint to take sizes from",
            file=cluster.model.path,
            field="model.path",
            mend="prepare the checkpoint first, or run this where it is",
            code=Exit.RESOURCE,
        )
    factor = 2 if cluster.engine.platform is Platform.cpu and cluster.engine.dtype == "float32" else 1
    note = ", held as float32" if factor > 1 else ""
    return [Item("weights", total * factor // cluster.world, f"checkpoint files over {cluster.world}{note}")]

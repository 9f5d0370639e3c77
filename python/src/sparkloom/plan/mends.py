"""Concrete settings that would fit, each tried by planning with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkloom.cluster.checks import check
from sparkloom.cluster.model import DrafterKind
from sparkloom.cluster.notes import unbuilt
from sparkloom.cluster.settings import settings
from sparkloom.cluster.types import Cluster
from sparkloom.plan.free import Free

CONTEXT_GRAIN = 1024
SMALLEST_CONTEXT = 16_384


def mends(cluster: Cluster, free: Mapping[str, Free]) -> tuple[str, ...]:
    """Changes of the file that fit: each alone, else the fewest together; else how much memory is missing."""
    from sparkloom.plan.planner import plan

    def fits(candidate: Cluster) -> bool:
        return not check(candidate) and plan(candidate, free, mend=False).fits

    alone = []
    for changes in _changes(cluster, free):
        if fits(_with(cluster, changes)):
            alone.append(_say(changes))
    if alone:
        return tuple(alone)
    together: dict[str, Any] = {}
    for changes in _changes(cluster, free, context=False):
        together |= changes
        candidate = _with(cluster, together)
        if fits(candidate):
            return (_say(together),)
        largest = _grain(plan(candidate, free, mend=False).largest_context)
        if largest >= SMALLEST_CONTEXT:
            shorter = together | {"serving.context_tokens": largest}
            if fits(_with(cluster, shorter)):
                return (_say(shorter),)
    worst = plan(cluster, free, mend=False).binding
    short = -worst.spare_bytes / 2**30
    return (
        f"free {short:.1f} GiB on {worst.name}: stop the desktop session and other services there "
        "(no setting of this file is small enough)",
    )


def _changes(cluster: Cluster, free: Mapping[str, Free], *, context: bool = True) -> Iterator[dict[str, Any]]:
    """Single changes, the least painful first."""
    from sparkloom.plan.planner import plan

    final = settings(cluster)
    if cluster.serving.loader.value == "instanttensor":
        yield {"serving.loader": "plain"}
    if cluster.serving.kv_cache_bytes is not None:
        yield {"serving.kv_cache_bytes": None}
    if context:
        largest = _grain(plan(cluster, free, mend=False).largest_context)
        if SMALLEST_CONTEXT <= largest < final.context_tokens:
            yield {"serving.context_tokens": largest}
    block = "draft_kv_block_tokens"
    if (
        final.drafter is DrafterKind.dflash2
        and cluster.patches.draft_kv_block_tokens is None
        and block not in unbuilt()
    ):
        yield {"patches.draft_kv_block_tokens": 2304}
    if final.max_sequences > 1:
        yield {"serving.max_sequences": max(1, final.max_sequences // 2)}
    if final.max_batched_tokens > 2048:
        yield {"serving.max_batched_tokens": 2048}
    if final.vision and final.processor_cache_bytes > 256 << 20:
        yield {"vision.processor_cache_bytes": 256 << 20}
    if final.vision:
        yield {"vision.enabled": False}


def _grain(context: int) -> int:
    return context // CONTEXT_GRAIN * CONTEXT_GRAIN


def _with(cluster: Cluster, changes: Mapping[str, Any]) -> Cluster:
    """A copy of `cluster` with values set by path; null takes the value out."""
    document = cluster.model_dump(mode="json", exclude_unset=True)
    for path, value in changes.items():
        section, name = path.split(".")
        document.setdefault(section, {})[name] = value
    import json

    return Cluster.model_validate_json(json.dumps(document))


def _say(changes: Mapping[str, Any]) -> str:
    import json

    return "set " + ", ".join(
        f"{path} to {json.dumps(value)}" if value is not None else f"leave {path} out"
        for path, value in changes.items()
    )

"""Final values: what the file, the profile and the model default make together, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from sparkloom.cluster.model import DrafterKind, Geometry
from sparkloom.cluster.operation import Platform
from sparkloom.cluster.profiles import CPU_DEFAULTS, MODEL_DEFAULTS, PROFILES, Blocks
from sparkloom.cluster.schema import walk
from sparkloom.cluster.serving import Effort, FairPrefill
from sparkloom.cluster.types import Cluster
from sparkloom.vllm.hooks.width_control import choices

if TYPE_CHECKING:
    from sparkloom.plan.kv import Layout


class Origin(StrEnum):
    """Where a final value came from, strongest first."""

    file = "file"
    profile = "profile"
    model_default = "model default"
    detected = "detected"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A final value with its origin and, where it was computed, the rule in words."""

    value: Any
    origin: Origin
    note: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every value that a profile or a rule may decide, concrete. Names follow the cluster file.

    `kv_cache_bytes` is None only for a model of unknown geometry whose file does not say it.
    """

    drafter: DrafterKind
    draft_tokens: int
    context_tokens: int
    max_sequences: int
    max_batched_tokens: int
    kv_cache_bytes: int | None
    prefix_caching: bool
    prefix_cache_retention_tokens: int
    cuda_graphs: bool
    cuda_graph_sizes: tuple[int, ...]
    long_prefill_tokens: int
    max_queued_requests: int
    default_effort: Effort
    vision: bool
    max_images: int
    max_videos: int
    max_image_tokens: int
    processor_cache_bytes: int
    spin_window_ms: float
    default_new_tokens: int
    fair_prefill: FairPrefill


DRAFT_TOKENS = {DrafterKind.dflash2: 7, DrafterKind.mtp: 2, DrafterKind.none: 0}


def sourced(cluster: Cluster) -> dict[str, Sourced]:
    """Every field of the cluster file outside `nodes` as path -> final value with origin."""
    found: dict[str, Sourced] = {}
    for path, default in _fields():
        found[path] = _one(cluster, path, default)
    _derived(cluster, found)
    return found


@cache
def _fields() -> tuple[tuple[str, Any], ...]:
    """Every field outside `nodes` with its default."""
    return tuple(
        (path, field.get_default(call_default_factory=True))
        for path, field in walk()
        if not path.startswith("nodes[].")
    )


def _one(cluster: Cluster, path: str, default: Any) -> Sourced:
    value, named = _in_file(cluster, path)
    if named:
        return Sourced(value, Origin.file)
    cpu = cluster.engine.platform is Platform.cpu
    if cpu and path in CPU_DEFAULTS:
        return Sourced(CPU_DEFAULTS[path], Origin.model_default, "CPU platform")
    profile = PROFILES[cluster.profile].values
    if path in profile:
        return Sourced(profile[path], Origin.profile, cluster.profile.value)
    if path in MODEL_DEFAULTS:
        return Sourced(MODEL_DEFAULTS[path], Origin.model_default)
    return Sourced(default, Origin.model_default)


def _in_file(cluster: Cluster, path: str) -> tuple[Any, bool]:
    """The value at `path` and whether the file says it (null says nothing)."""
    node: Any = cluster
    *parents, name = path.split(".")
    for part in parents:
        if part not in node.model_fields_set:
            return None, False
        node = getattr(node, part)
    value = getattr(node, name)
    return value, name in node.model_fields_set and value is not None


def _derived(cluster: Cluster, found: dict[str, Sourced]) -> None:
    """Fill the values that follow from others."""
    kind = DrafterKind(found["drafter.kind"].value)

    def fill(path: str, value: Any, note: str, origin: Origin = Origin.model_default) -> None:
        if found[path].value is None:
            found[path] = Sourced(value, origin, note)

    fill("drafter.tokens", DRAFT_TOKENS[kind], f"drafter {kind.value}")
    if kind is DrafterKind.none:
        found["drafter.tokens"] = Sourced(0, found["drafter.tokens"].origin, "no drafter")
    tokens = found["drafter.tokens"].value
    _limited(cluster, found)
    retention = found["serving.prefix_cache_retention_tokens"]
    if isinstance(retention.value, Blocks):
        blocks = retention.value.count
        value = blocks * _layout(cluster, found).block_tokens
        note = f"{retention.note}, {blocks} blocks"
        found["serving.prefix_cache_retention_tokens"] = Sourced(value, retention.origin, note)
    adaptive = cluster.patches.adaptive_verify_width
    sizes = graph_sizes(tokens, found["serving.max_sequences"].value, adaptive)
    fill("serving.cuda_graph_sizes", list(sizes), "from drafter tokens and max_sequences")
    if cluster.engine.platform is Platform.cpu:
        fill("engine.omp_threads", 1, "CPU platform")
    if found["serving.kv_cache_bytes"].value is None and cluster.model.geometry is Geometry.glm_flash:
        fill("serving.kv_cache_bytes", _pool_bytes(cluster, found), "what context and sequences need")
    fill("model.manifest", f"{cluster.model.path}/sparkloom-manifest.json", "beside the checkpoint")
    fill("engine.command", ["python", "-m", "sparkloom.vllm.serve"], "this project's launcher")


def _limited(cluster: Cluster, found: dict[str, Sourced]) -> None:
    """Lower what profile or model default say where the file's own values leave less room."""

    def at_most(path: str, limit: int, by: str) -> None:
        item = found[path]
        if item.origin is not Origin.file and item.value > limit:
            note = ", ".join(filter(None, (item.note, f"limited by {by}")))
            found[path] = Sourced(max(0, limit), item.origin, note)

    context = found["serving.context_tokens"].value
    at_most("serving.max_batched_tokens", max(context, 2048), "serving.context_tokens")
    step = found["serving.max_batched_tokens"].value
    at_most("serving.long_prefill_tokens", step, "serving.max_batched_tokens")
    at_most("patches.default_new_tokens", max(1, context // 2), "serving.context_tokens")
    if found["vision.enabled"].value:
        each = found["vision.max_image_tokens"].value
        frames = found["vision.max_videos"].value * cluster.vision.max_video_frames
        at_most("vision.max_images", (context - 1) // each - frames, "serving.context_tokens")
    else:
        for path in ("vision.max_images", "vision.max_videos"):
            at_most(path, 0, "vision.enabled")


def _layout(cluster: Cluster, found: Mapping[str, Sourced]) -> Layout:
    from sparkloom.plan.kv import layout

    return layout(
        cluster.world,
        found["drafter.kind"].value,
        found["drafter.tokens"].value,
        prefix_caching=found["serving.prefix_caching"].value,
        batched_tokens=found["serving.max_batched_tokens"].value,
        draft_block_tokens=cluster.patches.draft_kv_block_tokens,
    )


def _pool_bytes(cluster: Cluster, found: Mapping[str, Sourced]) -> int:
    return _layout(cluster, found).needed_bytes(
        found["serving.context_tokens"].value, found["serving.max_sequences"].value
    )


def graph_sizes(draft_tokens: int, max_sequences: int, adaptive: bool = False) -> tuple[int, ...]:
    """Token counts worth capturing: 1 (a lone token), then whole verify steps of 1..max_sequences requests.

    A verify step has draft_tokens + 1 rows per request, or one more than each width that an adaptive one may
    choose; beyond 8 requests the counts double.
    """
    rows = draft_tokens + 1
    widths = choices(draft_tokens) if adaptive and draft_tokens > 1 else (draft_tokens,)
    counts = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if n < max_sequences]
    sizes = {(width + 1) * n for width in widths for n in [*counts, max_sequences]} | {1}
    if rows > 1:
        sizes |= {2, 4} if rows > 4 else {2}
    return tuple(sorted(sizes))


def settings(cluster: Cluster, found: Mapping[str, Sourced] | None = None) -> Settings:
    """The concrete values of `cluster`."""
    values = {path: item.value for path, item in (found or sourced(cluster)).items()}
    return Settings(
        drafter=DrafterKind(values["drafter.kind"]),
        draft_tokens=values["drafter.tokens"],
        context_tokens=values["serving.context_tokens"],
        max_sequences=values["serving.max_sequences"],
        max_batched_tokens=values["serving.max_batched_tokens"],
        kv_cache_bytes=values["serving.kv_cache_bytes"],
        prefix_caching=values["serving.prefix_caching"],
        prefix_cache_retention_tokens=values["serving.prefix_cache_retention_tokens"],
        cuda_graphs=values["serving.cuda_graphs"],
        cuda_graph_sizes=tuple(values["serving.cuda_graph_sizes"]),
        long_prefill_tokens=values["serving.long_prefill_tokens"],
        max_queued_requests=values["serving.max_queued_requests"],
        default_effort=Effort(values["serving.default_effort"]),
        vision=values["vision.enabled"],
        max_images=values["vision.max_images"],
        max_videos=values["vision.max_videos"],
        max_image_tokens=values["vision.max_image_tokens"],
        processor_cache_bytes=values["vision.processor_cache_bytes"],
        spin_window_ms=values["patches.spin_window_ms"],
        default_new_tokens=values["patches.default_new_tokens"],
        fair_prefill=FairPrefill(values["patches.fair_prefill"]),
    )

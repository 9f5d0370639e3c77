"""Profiles: named sets of serving values, each with the trade that it makes.

A profile fills fields that the cluster file leaves null. Keys are paths in the cluster file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from sparkloom.cluster.base import GIB


class ProfileName(StrEnum):
    """Names of the profiles."""

    interactive = "interactive"
    long_context = "long-context"
    agents = "agents"
    no_drafter = "no-drafter"
    text_only = "text-only"


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of values.

    Args:
        trade: one sentence on what is gained and what is paid.
        values: path in the cluster file -> value.
    """

    trade: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Blocks:
    """A number of tokens given in blocks of the KV pool, whose size follows from the drafter."""

    count: int


def _profile(trade: str, **values: Any) -> Profile:
    return Profile(trade, MappingProxyType({key.replace("__", "."): v for key, v in values.items()}))


PROFILES: Mapping[ProfileName, Profile] = MappingProxyType(
    {
        ProfileName.interactive: _profile(
            "Short waits for a few people: a newcomer's prefill takes at most 30 % of the time and pauses "
            "running answers for at most 2 s, at the cost of slower long prefills and of context (262,144).",
            serving__context_tokens=262_144,
            serving__max_sequences=4,
            serving__max_batched_tokens=4608,
            serving__long_prefill_tokens=2304,
            patches__fair_prefill="fair",
        ),
        ProfileName.long_context: _profile(
            "One or two very long conversations: up to 786,432 tokens and the fastest prefill, at the cost "
            "of concurrency (2 requests), of images (4 in flight), and of waits during a prefill.",
            serving__context_tokens=786_432,
            serving__max_sequences=2,
            serving__max_batched_tokens=7168,
            serving__long_prefill_tokens=0,
            vision__max_images=4,
            vision__max_images_in_flight=4,
            vision__processor_cache_bytes=GIB // 4,
            patches__fair_prefill="stock",
        ),
        ProfileName.agents: _profile(
            "Coding agents with long shared prompts: state is kept every 3 blocks so that edits and branches "
            "hit the prefix cache, at the cost of 4 pool blocks (3 without DFlash2) per kept checkpoint.",
            serving__context_tokens=262_144,
            serving__max_sequences=4,
            serving__max_batched_tokens=4608,
            serving__long_prefill_tokens=3584,
            serving__prefix_cache_retention_tokens=Blocks(3),
            vision__max_images=8,
            vision__max_images_in_flight=8,
            vision__processor_cache_bytes=GIB // 2,
            patches__fair_prefill="fair",
        ),
        ProfileName.no_drafter: _profile(
            "No speculative decoding: plain behaviour for comparisons and for debugging, smaller pool "
            "blocks, at the cost of one token per step where published drafters get 2.4 (prose) to 6.7 "
            "(lists).",
            drafter__kind="none",
        ),
        ProfileName.text_only: _profile(
            "No vision tower: 0.5 GiB per rank, an image reserve of 1.2 GiB and an image cache of 2 GiB on "
            "the head go to the cache, at the cost of refusing every image.",
            vision__enabled=False,
            vision__max_images=0,
            vision__max_videos=0,
            vision__processor_cache_bytes=0,
        ),
    }
)

MODEL_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "drafter.kind": "mtp",
        "serving.context_tokens": 524_288,
        "serving.max_sequences": 4,
        "serving.max_batched_tokens": 7168,
        "serving.prefix_caching": True,
        "serving.prefix_cache_retention_tokens": 0,
        "serving.cuda_graphs": True,
        "serving.long_prefill_tokens": 3584,
        "serving.max_queued_requests": 64,
        "serving.default_effort": "high",
        "vision.enabled": True,
        "vision.max_images": 16,
        "vision.max_videos": 0,
        "vision.max_image_tokens": 2048,
        "vision.processor_cache_bytes": GIB,
        "patches.spin_window_ms": 16.0,
        "patches.default_new_tokens": 32_768,
        "patches.fair_prefill": "fair",
    }
)
"""What applies when neither the file nor the profile says anything. Values that follow from others (drafter
tokens, graph sizes, KV bytes) are computed in `settings.py`."""

CPU_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "drafter.kind": "none",
        "serving.context_tokens": 2048,
        "serving.max_batched_tokens": 2048,
        "serving.prefix_caching": False,
        "serving.cuda_graphs": False,
        "serving.long_prefill_tokens": 0,
        "serving.kv_cache_bytes": 256 << 20,
        "vision.enabled": False,
        "vision.max_images": 0,
        "patches.spin_window_ms": 1000.0,
        "patches.default_new_tokens": 256,
        "patches.fair_prefill": "stock",
        "memory.engine_init_bytes": 2 * GIB,
        "memory.host_floor_bytes": GIB // 2,
    }
)
"""The same for the CPU platform, where a profile's GPU-sized values would make no sense: there these come
before the profile's."""

"""vLLM's `/metrics` text as the few numbers that the probe and the agent need. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.parser import text_string_to_metric_families

from sparkloom.pair import Sample


@dataclass(frozen=True)
class Engine:
    """One reading, summed over engines."""

    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted: float = 0.0
    accepted_by_position: tuple[float, ...] = ()
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    preemptions: float = 0.0

    def sample(self) -> Sample:
        """What the liveness rule looks at."""
        tokens = self.prompt_tokens + self.generation_tokens + self.draft_tokens
        return Sample(tokens, self.kv_usage, self.running, self.waiting)


def parse(text: str) -> Engine:
    """Read an exposition text; absent series count as 0. Raises ValueError on text that is none."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("vllm:"):
            continue
        for sample in family.samples:
            if sample.name.endswith("accepted_tokens_per_pos_total"):
                position = int(sample.labels.get("position", "0"))
                positions[position] = positions.get(position, 0.0) + sample.value
            else:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value

    def get(name: str) -> float:
        return sums.get(f"vllm:{name}_total", sums.get(f"vllm:{name}", 0.0))

    return Engine(
        prompt_tokens=get("prompt_tokens"),
        generation_tokens=get("generation_tokens"),
        running=int(get("num_requests_running")),
        waiting=int(get("num_requests_waiting")),
        kv_usage=get("kv_cache_usage_perc"),
        drafts=get("spec_decode_num_drafts"),
        draft_tokens=get("spec_decode_num_draft_tokens"),
        accepted=get("spec_decode_num_accepted_tokens"),
        accepted_by_position=tuple(positions[p] for p in sorted(positions)),
        prefix_queries=get("prefix_cache_queries"),
        prefix_hits=get("prefix_cache_hits"),
        preemptions=get("num_preemptions"),
    )


class Health(StrEnum):
    """How the drafter does."""

    HEALTHY = "healthy"
    ZERO = "zero"
    PINNED = "pinned"
    DECAYED = "decayed"
    FEW = "few"


@dataclass(frozen=True)
class Acceptance:
    """Accepted drafts between two readings."""

    drafts: float
    rates: tuple[float, ...]  # by position, accepted of drafted
    health: Health

    def __str__(self) -> str:
        rates = ", ".join(f"{r:.2f}" for r in self.rates)
        return f"{self.drafts:.0f} drafts, accepted by position [{rates}]"


def acceptance(
    before: Engine, after: Engine, *, min_drafts: int = 64, reference: Iterable[float] = ()
) -> Acceptance:
    """Judge the drafter between two readings.

    `zero`: none of at least `min_drafts` accepted. `pinned`: every position of all of them accepted, which no
    real drafter does on prose. `decayed`: the first position fell below half of `reference`. `few`: too few
    drafts to say.
    """
    drafts = after.drafts - before.drafts
    old = (*before.accepted_by_position, *[0.0] * len(after.accepted_by_position))
    gained = [new - was for new, was in zip(after.accepted_by_position, old, strict=False)]
    rates = tuple(g / drafts if drafts > 0 else 0.0 for g in gained)
    total = after.accepted - before.accepted
    if drafts < min_drafts:
        health = Health.FEW
    elif total <= 0:
        health = Health.ZERO
    elif rates and all(r >= 1.0 for r in rates):
        health = Health.PINNED
    elif (expected := next(iter(reference), None)) is not None and rates and rates[0] < expected / 2:
        health = Health.DECAYED
    else:
        health = Health.HEALTHY
    return Acceptance(drafts, rates, health)

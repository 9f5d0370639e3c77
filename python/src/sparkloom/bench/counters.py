"""Read vLLM's Prometheus counters and turn differences into steps and acceptance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>[^\s]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Parse Prometheus text; lines that are no samples are passed over.

    Returns:
        value by (name, sorted label pairs without `engine` and `model_name`), summed over those two.
    """
    out: Series = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if line.startswith("#") or match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = tuple(
            sorted(
                (k, v) for k, v in _LABEL.findall(match["labels"] or "") if k not in ("engine", "model_name")
            )
        )
        key = (match["name"], labels)
        out[key] = out.get(key, 0.0) + value
    return out


def total(series: Series, name: str) -> float | None:
    """Sum of a metric over its labels; None where the server does not export it."""
    found = [v for (n, _), v in series.items() if n == name]
    return sum(found) if found else None


def by_label(series: Series, name: str, label: str) -> Mapping[str, float]:
    """Value of a metric for each value of one label."""
    out: dict[str, float] = {}
    for (n, labels), v in series.items():
        if n == name and (key := dict(labels).get(label)) is not None:
            out[key] = out.get(key, 0.0) + v
    return out


@dataclass(frozen=True)
class Acceptance:
    """What speculation did between two readings."""

    drafts: float  # verify steps that had a draft
    drafted: float  # tokens proposed
    accepted: float  # tokens accepted
    per_position: list[float]  # accepted at position i / drafts

    @property
    def rate(self) -> float:
        """Accepted over proposed tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a verify step yields: the accepted ones and the one the target adds."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0


def acceptance(before: Series, after: Series) -> Acceptance | None:
    """Speculation counters of a span; None where the server does not speculate."""

    def delta(name: str) -> float | None:
        b, a = total(before, name), total(after, name)
        return None if a is None else a - (b or 0.0)

    drafts = delta("vllm:spec_decode_num_drafts_total")
    drafted = delta("vllm:spec_decode_num_draft_tokens_total")
    accepted = delta("vllm:spec_decode_num_accepted_tokens_total")
    if not drafts or drafted is None or accepted is None:
        return None
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    old = by_label(before, name, "position")
    new = by_label(after, name, "position")
    rows = [(new[p] - old.get(p, 0.0)) / drafts for p in sorted(new, key=int)]
    return Acceptance(drafts, drafted, accepted, rows)


def running(series: Series) -> float:
    """Requests that run or wait now; 0 where the server does not say."""
    return (total(series, "vllm:num_requests_running") or 0.0) + (
        total(series, "vllm:num_requests_waiting") or 0.0
    )


def prefix_hits(before: Series, after: Series) -> float | None:
    """Prompt tokens that came from the prefix cache in a span; None where not exported."""
    for name in ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"):
        a = total(after, name)
        if a is not None:
            return a - (total(before, name) or 0.0)
    return None

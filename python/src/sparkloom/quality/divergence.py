"""KLD and top-1 agreement from two sets of top-N log-probabilities. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TINY = 1e-12


@dataclass(frozen=True)
class Point:
    """One position: divergence in nats, whether the most likely tokens agree, teacher mass compared."""

    kld: float
    same_top: bool
    coverage: float


def point(teacher: Mapping[int, float], model: Mapping[int, float]) -> Point:
    """Compare one position.

    Tokens that both lists hold are compared one by one, everything else as one rest class. Merging
    classes can only lower a divergence, so this is a lower bound of KL(teacher || model); `coverage`
    says how much of the teacher's mass was compared token by token.

    Args:
        teacher, model: token id -> natural log-probability (top N and the prompt's own token).
    """
    common = teacher.keys() & model.keys()
    kld = p_sum = q_sum = 0.0
    for token in common:
        p = math.exp(teacher[token])
        kld += p * (teacher[token] - model[token])
        p_sum += p
        q_sum += math.exp(model[token])
    rest_p, rest_q = max(1.0 - p_sum, 0.0), max(1.0 - q_sum, TINY)
    if rest_p > TINY:
        kld += rest_p * math.log(rest_p / rest_q)
    same = max(teacher, key=teacher.__getitem__) == max(model, key=model.__getitem__)
    return Point(max(kld, 0.0), same, min(p_sum, 1.0))


@dataclass(frozen=True)
class Divergence:
    """Summary over windows; intervals are 95 % cluster bootstraps over whole windows."""

    windows: int
    positions: int
    kld_mean: float
    kld_low: float
    kld_high: float
    kld_median: float
    kld_p99: float
    kld_max: float
    same_top: float
    same_top_low: float
    same_top_high: float
    coverage: float

    def as_dict(self) -> dict[str, Any]:
        """Rounded for a receipt."""
        return {k: v if isinstance(v, int) else round(v, 6) for k, v in asdict(self).items()}


def summarise(windows: Sequence[Sequence[Point]], seed: int = 0, draws: int = 2000) -> Divergence:
    """Summarise points window by window (positions of one window are not independent)."""
    kld = [np.array([p.kld for p in w]) for w in windows]
    same = [np.array([p.same_top for p in w], dtype=np.float64) for w in windows]
    flat = np.concatenate(kld)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(kld), (draws, len(kld)))
    sums, counts = np.array([x.sum() for x in kld]), np.array([len(x) for x in kld])
    hits = np.array([x.sum() for x in same])
    size = counts[picks].sum(1)
    low, high = np.percentile(sums[picks].sum(1) / size, [2.5, 97.5])
    top_low, top_high = np.percentile(hits[picks].sum(1) / size, [2.5, 97.5])
    return Divergence(
        windows=len(kld),
        positions=len(flat),
        kld_mean=float(flat.mean()),
        kld_low=float(low),
        kld_high=float(high),
        kld_median=float(np.median(flat)),
        kld_p99=float(np.percentile(flat, 99)),
        kld_max=float(flat.max()),
        same_top=float(np.concatenate(same).mean()),
        same_top_low=float(top_low),
        same_top_high=float(top_high),
        coverage=float(np.mean([p.coverage for w in windows for p in w])),
    )


def compare(
    teacher: Mapping[int, Sequence[Mapping[int, float]]],
    model: Mapping[int, Sequence[Mapping[int, float]]],
) -> Divergence:
    """Compare two collections (window -> positions) over the windows that both hold."""
    both = sorted(teacher.keys() & model.keys())
    return summarise([[point(t, m) for t, m in zip(teacher[i], model[i], strict=True)] for i in both])

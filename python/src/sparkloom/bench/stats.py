"""Few numbers, said honestly: median, spread, an interval, and what two equal arms differ by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Summary of one list of measurements (unit of the input)."""

    n: int
    median: float
    mean: float
    low: float  # 95 % bootstrap interval of the median
    high: float
    minimum: float
    maximum: float
    spread: float  # (90th - 10th percentile) / median

    def as_dict(self) -> dict[str, Any]:
        """Rounded values for the receipt."""
        return {k: v if isinstance(v, int) else round(v, 5) for k, v in asdict(self).items()}


def summarise(values: Sequence[float], seed: int = 0, draws: int = 2000) -> Summary | None:
    """Summarise measurements; None for an empty list.

    The interval is a percentile bootstrap of the median with a fixed seed, so that a receipt can be
    recomputed to the digit.
    """
    if not values:
        return None
    x = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    medians = np.median(x[rng.integers(0, len(x), (draws, len(x)))], axis=1)
    middle = float(np.median(x))
    p10, p90 = np.percentile(x, [10, 90])
    return Summary(
        n=len(x),
        median=middle,
        mean=float(x.mean()),
        low=float(np.percentile(medians, 2.5)),
        high=float(np.percentile(medians, 97.5)),
        minimum=float(x.min()),
        maximum=float(x.max()),
        spread=float((p90 - p10) / middle) if middle else 0.0,
    )


def a_a(values: Sequence[float]) -> float | None:
    """A/A noise: |median of even runs / median of odd runs - 1|; None below four runs.

    Two arms that differ in nothing differ by this much; a smaller difference between real arms is noise.
    """
    if len(values) < 4:
        return None
    even, odd = float(np.median(values[::2])), float(np.median(values[1::2]))
    return abs(even / odd - 1.0) if odd else None

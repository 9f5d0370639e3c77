"""How many drafted tokens to verify: acceptance seen so far against what a verified row costs. Pure."""

from __future__ import annotations

NEWEST = 0.06
"""What is forgotten of a position's record per verified draft: about the last 16 count."""
FADE = 0.02
"""What is forgotten of an unverified position's record per fully accepted draft: it gets another chance."""
TRUST = 1.0
"""Drafts that the rate of the position before is worth, as a guess for a position with a thin record."""
FIRST = 0.7
"""The guess for the first position."""
LEARN = 12
"""Drafts that are verified at full width before the first choice."""
MARGIN = 0.03
"""A new width must promise so much more than the present one."""
DWELL = 6
"""Steps between two changes."""
PRIOR = 0.06
"""Cost of one row as a share of a step's fixed cost, until it was measured (experts of a sparse model: each
row reads others)."""
FORGET = 0.999  # per step: what a row costs hangs on the machine and the context, not on the text
PRIOR_WEIGHT = 50.0  # of the prior, in squared rows: a few dozen steps of differing widths outweigh it
OUTLIER = 4.0  # a step that took so many times what was expected was no plain decode step


def choices(most: int) -> tuple[int, ...]:
    """The few widths that are used, ascending, so that each can have its CUDA graphs: 7 gives 1, 2, 4, 7."""
    return tuple(sorted({n for n in (1, 2, 4, 8, 16, 32) if n < most} | {most}))


class Cost:
    """Seconds of a step as a line over its rows, from measured steps; a prior slope until those tell."""

    def __init__(self) -> None:
        self.weight = self.rows = self.seconds = self.rows2 = self.cross = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from one decode step of `rows` verified rows (all requests) and its length in seconds."""
        if rows <= 0 or seconds <= 0 or (self.weight > 1 and seconds > OUTLIER * self.of(rows)):
            return
        for name, value in (
            ("weight", 1.0),
            ("rows", float(rows)),
            ("seconds", seconds),
            ("rows2", float(rows * rows)),
            ("cross", rows * seconds),
        ):
            setattr(self, name, FORGET * getattr(self, name) + value)

    def of(self, rows: float) -> float:
        """Cost of a step of so many rows: seconds once steps were measured, else relative."""
        if not self.weight:
            return 1 + PRIOR * rows
        mean_rows, mean = self.rows / self.weight, self.seconds / self.weight
        expected = PRIOR * mean / (1 + PRIOR * mean_rows)
        spread = max(self.rows2 - self.weight * mean_rows**2, 0.0)
        slope = (self.cross - self.weight * mean_rows * mean + PRIOR_WEIGHT * expected) / (
            spread + PRIOR_WEIGHT
        )
        slope = min(max(slope, 0.0), mean / mean_rows)
        return mean + slope * (rows - mean_rows)


class Controller:
    """Chooses the width of the next draft. Time is given, not read.

    Args:
        most: tokens that the drafter proposes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.widths = choices(most)
        self.width = most
        self.cost = Cost()
        self.tries = [0.0] * most
        self.hits = [0.0] * most
        self.seen = 0
        self.since = DWELL

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from one verified draft.

        Args:
            drafted: tokens of it that were verified.
            accepted: how many of them, from the first on, the model took.
        """
        drafted = min(drafted, self.most)
        if drafted <= 0:
            return
        self.seen += 1
        for i in range(min(accepted + 1, drafted)):
            self.tries[i] = (1 - NEWEST) * self.tries[i] + 1
            self.hits[i] = (1 - NEWEST) * self.hits[i] + (i < accepted)
        if accepted >= drafted:  # what lies beyond is unknown, and the record of it gets old
            for i in range(drafted, self.most):
                self.tries[i] *= 1 - FADE
                self.hits[i] *= 1 - FADE

    def expected(self, width: int) -> float:
        """Tokens that a step yields per request when `width` drafted tokens are verified."""
        total, chance, rate = 1.0, 1.0, FIRST
        for tries, hits in zip(self.tries[:width], self.hits[:width], strict=True):
            rate = (hits + TRUST * rate) / (tries + TRUST)
            chance *= rate
            total += chance
        return total

    def choose(self, requests: int) -> int:
        """The width for the next draft of each of `requests` running requests."""
        self.since += 1
        if self.seen < LEARN:
            return self.width
        worth = {w: self.expected(w) / self.cost.of(requests * (1 + w)) for w in self.widths}
        best = max(self.widths, key=lambda w: worth[w])
        if self.since >= DWELL and worth[best] > (1 + MARGIN) * worth[self.width]:
            self.width, self.since = best, 0
        return self.width

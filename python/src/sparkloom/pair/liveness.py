"""Busy or hung: the rule that lets a ten-minute prefill live and ends a dead collective.

Counters of tokens rise only when a token leaves the engine; during a long chunked prefill the sign of life is
the share of KV cache in use, which grows with each chunk. Either counts as progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sparkloom.pair.limits import Limits


@dataclass(frozen=True)
class Sample:
    """One reading of the engine's `/metrics`; `None` where the read itself failed.

    Attributes:
        tokens: the sum of counters that rise with work done (prompt, generated, drafted tokens).
        kv_usage: share of KV cache in use, 0 to 1.
    """

    tokens: float
    kv_usage: float
    running: int
    waiting: int


class Answer(StrEnum):
    """How the tiny checked generation ended."""

    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"  # an error, or nothing within the deadline


class Verdict(StrEnum):
    """What the watcher should do now."""

    FINE = "fine"
    ASK = "ask"  # idle for a while: run a tiny checked generation
    HUNG = "hung"


@dataclass
class Liveness:
    """State of the rule for one ready generation. Times are monotonic seconds."""

    limits: Limits
    progress_at: float
    last: Sample | None = None
    asked_at: float | None = None
    checked_at: float = field(init=False)  # when the last tiny generation was asked for
    failed: str = ""
    failures: int = 0
    text: str = ""

    def __post_init__(self) -> None:
        self.checked_at = self.progress_at

    def sample(self, sample: Sample | None, now: float) -> Verdict:
        """Judge after one reading of the metrics."""
        if sample is not None:
            if self.last is None or self._moved(self.last, sample):
                self._progress(now)
            self.last = sample
        quiet = now - self.progress_at
        if self.failures >= self.limits.canary_failures:
            # A failed canary beside real progress is a slow answer, not a hang.
            if quiet >= self.limits.canary_s:
                return self._hung(f"{self.failed}, and nothing moved for {quiet:.0f} s")
            return Verdict.FINE
        if self.asked_at is not None:
            return Verdict.FINE  # its own deadline ends it
        if quiet >= self.limits.stall_s:
            what = "the metrics cannot be read" if sample is None else f"{sample.running} requests run"
            return self._hung(f"{what} and nothing moved for {quiet:.0f} s")
        idle = sample is None or (sample.running == 0 and sample.waiting == 0)
        # A busy engine is asked too, seldom: it could answer everybody wrongly.
        if (idle and quiet >= self.limits.idle_s) or now - self.checked_at >= self.limits.check_s:
            self.asked_at = self.checked_at = now
            return Verdict.ASK
        return Verdict.FINE

    def answered(self, answer: Answer, text: str, now: float) -> Verdict:
        """The tiny generation ended; `text` says what was seen."""
        self.asked_at = None
        if answer is Answer.RIGHT:
            self._progress(now)
            return Verdict.FINE
        if answer is Answer.WRONG:  # needs no further proof
            return self._hung(text)
        self.failed = text
        self.failures += 1
        return Verdict.FINE

    def fed(self, now: float) -> bool:
        """Whether the service manager's watchdog may be fed."""
        return now - self.progress_at < self.limits.stall_s + 2 * self.limits.canary_s

    def _moved(self, before: Sample, after: Sample) -> bool:
        if after.tokens != before.tokens:
            return True  # lower means that the engine restarted: the agent sees that elsewhere
        return after.running > 0 and after.kv_usage != before.kv_usage

    def _progress(self, now: float) -> None:
        self.progress_at, self.failed, self.failures = now, "", 0

    def _hung(self, text: str) -> Verdict:
        self.text = text
        return Verdict.HUNG

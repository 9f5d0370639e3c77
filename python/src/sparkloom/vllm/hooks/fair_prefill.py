"""A newcomer's prompt shares steps with running answers: bounded gap, bounded share of the time.

Why: with vLLM's order a long prompt holds every running answer for seconds to minutes; with small fixed
chunks the newcomer waits as long. A controller measures what a prefill token and a decode step cost on this
machine and sets, before each step, the largest chunk whose gap stays below the bound and how many
decode-only steps must lie between two chunks so that prefill takes no more than its share.
Upstream: `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` (0.33.0) has both levers, as constants:
`scheduler_config.long_prefill_token_threshold` and `local_prefill_interval`. Issue text: "Chunk size and
interval of prefills are constants, so a long prompt stalls running answers on a slow machine or waits too
long on a fast one. Please let the scheduler choose both from measured step times, given a longest gap and a
share."
Tested: the controller against simulated machines (tests/vllm/hooks/test_fair_prefill.py). On an H200
(docs/receipts, row fair) an earlier controller without the fixed part kept chunks smaller than they need
be on a tiny model, whose steps cost mostly that part; this one was not run there.
Default on (`fair`) for the profiles that serve people. Drop when: vLLM bounds the gap by time.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import Any

from sparkloom.vllm.hooks.shape import HookRefused, expect_attribute

LEAST_CHUNK = 64  # also the first chunk, before anything was measured
GROWTH = 4  # a chunk is at most this many times the largest that was measured lately
WEIGHT = 0.3  # of the newest measurement in the moving averages


class Controller:
    """Chooses chunk and interval from measured step times. Pure: time is given, not read.

    A step with a chunk of n prompt tokens is taken to last `fixed + n * per_token`; both are fitted to the
    latest steps (least squares, older steps fade). Chunks grow step by step, so that the line is never
    stretched far beyond what was measured.

    Args:
        share: share of the time that prefill may take while answers run (0 to 1).
        max_gap: longest step in seconds that a running answer should meet.
    """

    def __init__(self, share: float, max_gap: float) -> None:
        self.share, self.max_gap = share, max_gap
        self.decode_step: float | None = None
        self.seen: tuple[float, float, float, float] | None = None  # faded means of n, t, n*n, n*t
        self.largest = 0.0
        self.latest = 0.0  # seconds of the newest step with a chunk
        self.fixed: float | None = None  # of the newest fit

    def observe(self, seconds: float, prefill_tokens: int) -> None:
        """Learn from one finished step.

        Args:
            seconds: its length.
            prefill_tokens: prompt tokens in it; 0 for a decode-only step.
        """
        if seconds <= 0:
            return
        n = float(prefill_tokens)
        if prefill_tokens == 0:
            self.decode_step = blend(self.decode_step, seconds)
            return
        self.latest = seconds
        if self.seen is None:
            self.seen, self.largest = (n, seconds, n * n, n * seconds), n
        else:
            a, b, c, d = self.seen
            self.seen = (blend(a, n), blend(b, seconds), blend(c, n * n), blend(d, n * seconds))
            self.largest = max(n, blend(self.largest, n))

    def costs(self) -> tuple[float, float]:
        """Fixed seconds of a step with a chunk, and seconds of one prompt token in it."""
        assert self.seen is not None
        tokens, seconds, squares, products = self.seen
        spread = squares - tokens * tokens
        if spread > 0.01 * squares:
            per_token = (products - tokens * seconds) / spread
        else:  # chunks of one size tell nothing about their fixed part
            known = self.fixed if self.fixed is not None else (self.decode_step or 0.0)
            per_token = (seconds - known) / tokens
        per_token = min(max(per_token, 0.01 * seconds / tokens), seconds / tokens)
        fixed = seconds - per_token * tokens
        if spread > 0.01 * squares:
            self.fixed = fixed
        return fixed, per_token

    def plan(self) -> tuple[int, int]:
        """Prefill tokens of one prompt in a step, and steps from one chunk to the next (1: every step)."""
        if self.seen is None:
            return LEAST_CHUNK, math.ceil(1 / self.share)
        fixed, per_token = self.costs()
        # Where the fixed part alone passes the bound, a chunk as long as that part at least halves its waste.
        wanted = (self.max_gap - fixed if fixed < self.max_gap else fixed) / per_token
        if self.fixed is None and self.latest > self.max_gap:
            wanted = 2 * self.largest  # once: is it the tokens that are slow, or the step?
        chunk = max(LEAST_CHUNK, int(min(wanted, GROWTH * self.largest)) // LEAST_CHUNK * LEAST_CHUNK)
        if self.decode_step is None:
            return chunk, math.ceil(1 / self.share)
        # No longer than a chunk may last or did last: one slow step (a kernel compiled) must not starve it.
        busy = min(fixed + chunk * per_token, max(self.max_gap, self.latest)) - self.decode_step
        busy = max(busy, 0.0)
        alone = busy * (1 - self.share) / self.share  # decode time that must lie between two chunks
        return chunk, 1 + max(0, math.ceil(alone / self.decode_step) - 1)


def blend(old: float | None, new: float) -> float:
    """Exponential moving average."""
    return new if old is None else (1 - WEIGHT) * old + WEIGHT * new


def prefill_tokens(output: Any, decode_rows: int) -> int:
    """Prompt tokens of a scheduled step: what goes beyond a verify step of each request."""
    return sum(n for n in output.num_scheduled_tokens.values() if n > decode_rows)


def install(value: object, share: float = 0.3, max_gap: float = 2.0) -> None:
    """Let the controller set both levers before each step of every scheduler made from now on.

    Raises:
        HookRefused: this vLLM has no prefill interval (before 0.33).
    """
    if value != "fair":
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    scheduler: Any = Scheduler
    original = expect_attribute("fair_prefill", scheduler, "schedule")
    if "local_prefill_interval" not in inspect.getsource(scheduler.__init__):
        raise HookRefused("fair_prefill: Scheduler has no local_prefill_interval; set fair_prefill to stock")

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        now = time.monotonic()
        state = getattr(self, "sparkloom_fair", None)
        if state is None:
            configured = self.scheduler_config.long_prefill_token_threshold
            state = self.sparkloom_fair = {"control": Controller(share, max_gap), "cap": configured}
        control: Controller = state["control"]
        if state.get("tokens") is not None and state.get("busy"):
            control.observe(now - state["since"], state["tokens"])
        answering = any(not r.is_prefill_chunk for r in self.running)
        chunk, interval = control.plan() if answering else (0, 1)
        cap = state["cap"]
        self.scheduler_config.long_prefill_token_threshold = (
            min(c for c in (chunk, cap) if c) if chunk else cap
        )
        self.local_prefill_interval = interval
        output = original(self, *args, **kwargs)
        decode_rows = 1 + (getattr(self, "num_spec_tokens", 0) or 0)
        # Only steps that follow each other directly tell how long the first one took.
        busy = output.total_num_scheduled_tokens > 0
        state.update(since=now, tokens=prefill_tokens(output, decode_rows) if busy else None, busy=answering)
        return output

    scheduler.schedule = schedule

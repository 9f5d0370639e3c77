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
(docs/receipts, row fair): chunks and interval follow the bound from the third chunk on; the first, made
before anything was measured, passed it, and where a step's fixed cost outweighs its tokens, as in a tiny
model, chunks become smaller than they need be.
Default on (`fair`) for the profiles that serve people. Drop when: vLLM bounds the gap by time.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import Any

from sparkloom.vllm.hooks.shape import HookRefused, expect_attribute

LEAST_CHUNK = 64
FIRST_CHUNK = 256  # before anything was measured
WEIGHT = 0.3  # of the newest measurement in the moving averages


class Controller:
    """Chooses chunk and interval from measured step times. Pure: time is given, not read.

    Args:
        share: share of the time that prefill may take while answers run (0 to 1).
        max_gap: longest step in seconds that a running answer should meet.
    """

    def __init__(self, share: float, max_gap: float) -> None:
        self.share, self.max_gap = share, max_gap
        self.decode_step: float | None = None
        self.per_token: float | None = None

    def observe(self, seconds: float, prefill_tokens: int) -> None:
        """Learn from one finished step.

        Args:
            seconds: its length.
            prefill_tokens: prompt tokens in it; 0 for a decode-only step.
        """
        if seconds <= 0:
            return
        if prefill_tokens == 0:
            self.decode_step = blend(self.decode_step, seconds)
        else:
            own = max(seconds - (self.decode_step or 0.0), 0.1 * seconds)
            self.per_token = blend(self.per_token, own / prefill_tokens)

    def plan(self) -> tuple[int, int]:
        """Prefill tokens of one prompt in a step, and steps from one chunk to the next (1: every step)."""
        if self.per_token is None:
            chunk = FIRST_CHUNK
        else:
            room = self.max_gap - (self.decode_step or 0.0)
            chunk = max(LEAST_CHUNK, int(room / self.per_token) // LEAST_CHUNK * LEAST_CHUNK)
        if self.per_token is None or self.decode_step is None:
            return chunk, math.ceil(1 / self.share)
        busy = chunk * self.per_token
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

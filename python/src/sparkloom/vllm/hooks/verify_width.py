"""Verify only a prefix of the draft, its width chosen per step from what was accepted lately.

Why: each verified row of a sparse model reads other experts, so a step gets dearer with its width; while
drafts are refused early, the tail of the draft is verified for nothing. Lossless: a shorter draft is a draft,
and verification keeps the model's own distribution (at temperature 0: its own tokens) for each.
How: vLLM can change the width per step, by the number of running requests only
(`num_speculative_tokens_per_batch_size`): the worker drops the tail of the draft, and CUDA graphs are
captured for each width that its table names. The table is made to name our few widths
(`width_control.choices`), and the scheduler's look-up is replaced by the controller's choice. The scheduler
runs once, in the head's engine core, and sends the width with each step: all ranks get the same.
Upstream: `num_spec_tokens_to_schedule` in `vllm/v1/core/sched/scheduler.py`; issue text: "Dynamic speculative
decoding picks the draft length by batch size alone. Please let the scheduler pick it from acceptance: an
exponential average per draft position and a linear cost per verified row say which width yields most tokens a
second; the drafts, the graphs and the padding for changing widths are there already."
Default off. Drop when: vLLM chooses the width from acceptance.
Tested: the controller against simulated drafters (tests/vllm/hooks/test_verify_width.py), the graphs' widths
with vLLM 0.33.0's own code (tests/patches/test_width_graphs.py), inside vLLM 0.32 on the CPU with drafts that
are made to be refused or accepted, one rank and two (tests/vllm). On an H200 with CUDA graphs (docs/receipts,
rows verify-width*): the same tokens; mean width 6.5 of 7 with a draft of 2.1 accepted tokens, 3.5 with one of
0.6. To see the width: `vllm:spec_decode_num_draft_tokens_total / vllm:spec_decode_num_drafts_total`.
"""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from sparkloom.vllm.hooks.shape import HookRefused, expect_parameters
from sparkloom.vllm.hooks.width_control import Controller, choices

HOOK = "adaptive_verify_width"
ANY_BATCH = 1 << 20
LOOKUP = "build_dynamic_sd_schedule_lookup"

logger = logging.getLogger("vllm.sparkloom")


def all_widths(schedule: object, vllm_max_batch_size: int, vllm_num_speculative_tokens: int) -> list[int]:
    """In place of vLLM's table from batch size to width: each width for each batch size, the widest first.

    vLLM captures graphs for the widths that it finds in here, each up to the largest index that has it.
    """
    widths = reversed(choices(vllm_num_speculative_tokens))
    return [0, *(width for width in widths for _ in range(vllm_max_batch_size))]


def check(scheduler: Any) -> None:
    """Refuse a scheduler that does not take the width from the look-up.

    Raises:
        HookRefused: it has another form.
    """
    if "self.dynamic_sd_lookup[" not in inspect.getsource(scheduler):
        raise HookRefused(f"{HOOK}: Scheduler.schedule takes the width from elsewhere; set the option off")
    names = ("spec_decoding_stats", "num_draft_tokens", "num_accepted_tokens", "num_invalid_spec_tokens")
    expect_parameters(HOOK, scheduler.make_spec_decoding_stats, *names, "request_id")


def scheduling(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Scheduler.schedule` that chooses the width of the drafts that this step will make."""

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "dynamic_sd_lookup", None):
            return original(self, *args, **kwargs)
        state = self.__dict__.setdefault("sparkloom_width", {"control": Controller(self.num_spec_tokens)})
        control: Controller = state["control"]
        now, before = time.monotonic(), control.width
        if state.get("rows"):
            control.cost.observe(state["rows"], now - state["since"])
        width = control.choose(max(1, len(self.running)))
        if width != before:
            logger.debug("sparkloom: verify width %d, was %d", width, before)
        self.dynamic_sd_lookup = [width] * (self.scheduler_config.max_num_seqs + 1)
        output = original(self, *args, **kwargs)
        counts = output.num_scheduled_tokens.values()
        plain = bool(counts) and max(counts) <= 1 + self.num_spec_tokens
        # Only decode steps that follow each other directly tell what a row costs.
        state.update(since=now, rows=output.total_num_scheduled_tokens if plain else 0)
        return output

    return schedule


def observing(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Scheduler.make_spec_decoding_stats`, called once per verified draft, that tells the controller."""

    def make_spec_decoding_stats(
        self: Any,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        state = self.__dict__.get("sparkloom_width")
        if state is not None:
            invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
            state["control"].observe(num_draft_tokens - invalid, num_accepted_tokens)
        return original(
            self,
            spec_decoding_stats,
            num_draft_tokens,
            num_accepted_tokens,
            num_invalid_spec_tokens,
            request_id,
        )

    return make_spec_decoding_stats


def configuring(original: Callable[..., None]) -> Callable[..., None]:
    """`SpeculativeConfig.__post_init__` that asks for a width per step.

    Raises:
        HookRefused: a table by batch size was given as well.
    """

    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        ours = [(1, ANY_BATCH, self.num_speculative_tokens)]
        if self.num_speculative_tokens_per_batch_size not in (None, ours):  # a copy has ours already
            raise HookRefused(
                f"{HOOK} and num_speculative_tokens_per_batch_size both set the width; drop one of them"
            )
        if (self.num_speculative_tokens or 0) > 1:
            self.num_speculative_tokens_per_batch_size = ours

    return __post_init__


def install(_: object) -> None:
    """Change the configuration, the table of widths and the scheduler."""
    from vllm.config.speculative import SpeculativeConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.spec_decode.dynamic import utils

    scheduler: Any = Scheduler
    config: Any = SpeculativeConfig
    check(scheduler)
    original = getattr(utils, LOOKUP)
    expect_parameters(
        HOOK,
        original,
        "num_speculative_tokens_per_batch_size",
        "vllm_max_batch_size",
        "vllm_num_speculative_tokens",
    )
    for module in list(sys.modules.values()):
        if vars(module).get(LOOKUP) is original:
            setattr(module, LOOKUP, all_widths)
    config.__post_init__ = configuring(config.__post_init__)
    scheduler.schedule = scheduling(scheduler.schedule)
    scheduler.make_spec_decoding_stats = observing(scheduler.make_spec_decoding_stats)

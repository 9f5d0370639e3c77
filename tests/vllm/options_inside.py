"""Run by test_options_oracle.py in its own process: one rank whose drafts are made to be refused, then right.

usage: options_inside.py CHECKPOINT PROMPTS.json OUT.json
The hooks are those of the environment.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

DRAFTS, TOKENS = 7, 64
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


class Oracle:
    """A drafter that knows what the model will say: it proposes that, or something else on purpose."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], list[int]] = {}
        self.right = False
        self.asked: list[int] = []

    def propose(
        self, width: int, sampled: list[list[int]], lengths: Any, tokens: Any, **_: Any
    ) -> list[list[int]]:
        """In place of the n-gram proposer's: one draft of at most `width` tokens per request."""
        self.asked.append(width)
        drafts: list[list[int]] = []
        for row, new in enumerate(sampled):
            text = tuple(int(t) for t in tokens[row, : lengths[row]])
            drafts.append(self.draft(text, width) if new else [])
        return drafts

    def draft(self, text: tuple[int, ...], width: int) -> list[int]:
        """What follows `text` (prompt and answer so far), or each token but one beside it."""
        for prompt, answer in self.known.items():
            if text[: len(prompt)] == prompt:
                follows = answer[len(text) - len(prompt) :][:width]
                return follows if self.right else [token % 300 + 30 for token in follows]
        return [29] * width


def main(checkpoint: str, prompts: str, out: str) -> None:
    """Serve the prompts three times: before anything is known, with wrong drafts, with right ones."""
    from vllm import LLM

    from sparkloom.vllm.hooks.width_control import Cost
    from sparkloom.vllm.sources import from_engine

    Cost.observe = lambda *_: None  # type: ignore[method-assign,assignment] # a busy machine decides nothing
    llm = LLM(
        checkpoint,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
        disable_log_stats=False,
        speculative_config={"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3},
    )
    asked = json.loads(Path(prompts).read_text())
    core = llm.llm_engine.engine_core.engine_core
    oracle = Oracle()
    core.model_executor.driver_worker.worker.model_runner.drafter.propose = oracle.propose

    def counters() -> list[float]:
        found = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
        return [float(found[f"vllm:spec_decode_{name}"]) for name in COUNTERS]

    phases = []
    for right in (False, False, True):
        oracle.right, oracle.asked = right, []
        before = counters()
        runs = from_engine(llm, asked, TOKENS)
        oracle.known = {tuple(p): list(run.tokens) for p, run in zip(asked, runs, strict=True)}
        change = [after - was for after, was in zip(counters(), before, strict=True)]
        phases.append(
            {
                "runs": [dataclasses.asdict(run) for run in runs],
                "counters": dict(zip(COUNTERS, change, strict=True)),
                "asked": oracle.asked,
            }
        )
    Path(out).write_text(json.dumps(phases))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Stop strings sleep until the reasoning part has ended.

Why: a stop string that the model happens to write while it thinks ends the request with an empty answer.
Upstream: `BaseIncrementalDetokenizer` in `vllm/v1/engine/detokenizer.py` matches against all text; issue
text: "A stop string that occurs inside the reasoning ends the request with an empty answer. Please match
stop strings against the answer only when a reasoning parser is set."
Tested: vLLM's own detokenizer for several batchings of the same tokens (tests/vllm/hooks); no GPU is
involved.
Default on. Drop when: vLLM scopes stop strings to the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkloom.vllm.hooks.shape import expect_attribute, expect_parameters

START, END = "<think>", "</think>"


def reasoning_open(prompt: Sequence[int], start: int, end: int) -> bool:
    """Whether a prompt leaves the model thinking: its last marker is the opening one."""
    for token in reversed(prompt):
        if token in (start, end):
            return token == start
    return False


class Sleeper:
    """Decides for each batch of new tokens which part is reasoning.

    Args:
        start, end: ids of the opening and closing markers.
        thinking: whether the prompt left the reasoning open.
    """

    def __init__(self, start: int, end: int, thinking: bool) -> None:
        self.start, self.end = start, end
        self.asleep = thinking
        self.fresh = not thinking  # nothing was generated yet: an opening marker may still come

    def split(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Split new tokens into (reasoning, answer); the closing marker belongs to the reasoning."""
        if self.fresh and tokens:
            self.fresh = False
            self.asleep = tokens[0] == self.start
        if not self.asleep:
            return [], list(tokens)
        if self.end not in tokens:
            return list(tokens), []
        self.asleep = False
        cut = list(tokens).index(self.end) + 1
        return list(tokens[:cut]), list(tokens[cut:])


def update(detokenizer: Any, original: Any, tokens: list[int], stop_terminated: bool) -> str | None:
    """`BaseIncrementalDetokenizer.update` with a sleeper: stop strings see the answer only."""
    sleeper: Sleeper = detokenizer.sparkloom_sleeper
    thinking, answer = sleeper.split(tokens)
    if thinking:
        stop, detokenizer.stop = detokenizer.stop, []
        try:
            original(detokenizer, thinking, stop_terminated and not answer)
        finally:
            detokenizer.stop = stop
        detokenizer.sparkloom_floor = len(detokenizer.output_text)
    if not answer:
        return None
    # A match may not reach back into the reasoning: hide that part while the answer is checked.
    floor = detokenizer.sparkloom_floor
    hidden, detokenizer.output_text = detokenizer.output_text[:floor], detokenizer.output_text[floor:]
    try:
        matched: str | None = original(detokenizer, answer, stop_terminated)
    finally:
        detokenizer.output_text = hidden + detokenizer.output_text
    return matched


def install(_: object) -> None:
    """Give each request that has stop strings a sleeper, where the tokenizer knows the markers."""
    from vllm.v1.engine import detokenizer as module

    base: Any = module.BaseIncrementalDetokenizer
    maker: Any = module.IncrementalDetokenizer
    hook = "stop_strings_after_reasoning"
    expect_parameters(hook, base.update, "new_token_ids", "stop_terminated")
    expect_parameters(hook, maker.from_new_request, "tokenizer", "request")
    expect_attribute(hook, module, "check_stop_strings")
    make, check = maker.from_new_request.__func__, base.update

    def from_new_request(cls: Any, tokenizer: Any, request: Any) -> Any:
        made = make(cls, tokenizer, request)
        if getattr(made, "stop", None):
            vocabulary = tokenizer.get_vocab()
            if START in vocabulary and END in vocabulary:
                start, end = vocabulary[START], vocabulary[END]
                thinking = reasoning_open(request.prompt_token_ids or [], start, end)
                made.sparkloom_sleeper = Sleeper(start, end, thinking)
                made.sparkloom_floor = 0
        return made

    def patched(self: Any, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        if not hasattr(self, "sparkloom_sleeper"):
            plain: str | None = check(self, new_token_ids, stop_terminated)
            return plain
        return update(self, check, new_token_ids, stop_terminated)

    maker.from_new_request = classmethod(from_new_request)
    base.update = patched

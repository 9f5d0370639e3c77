"""The parity gate: do two ways of running one model say the same?

Pure: it gets token ids and log-probabilities, it starts nothing. A gate compares greedy generations of a
candidate (a pair, a kernel, a quantised engine) with a reference (transformers on dense weights, one rank),
prompt by prompt:

* All tokens must be equal up to the end, or up to a *near tie*.
* At every shared position the log-probability of the chosen token may differ by `logprob_bound` nats at most.
* A near tie is a first differing position where **both** sides hold both tokens within `tie_bound` nats of
  each other. It needs the alternatives' log-probabilities of both sides; without them a difference is a
  failure. What comes after a near tie is another text and is not compared.
* At most `max_ties` of the prompts may end in a near tie, and at least `min_share` of the reference's tokens
  must have been compared.

A broken shard cannot hide behind this: it moves the log-probabilities of all positions, not only of tied
ones, and the first position is always compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Generation:
    """One greedy generation.

    Args:
        tokens: token ids in order.
        logprobs: natural logarithm of each chosen token's probability, same length.
        top: per position, token id -> log-probability of the likeliest tokens (the chosen one may be among
            them); empty if unknown.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Mapping[int, float], ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
        if self.top and len(self.top) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but alternatives for {len(self.top)}")

    def gap(self, position: int, other: int) -> float:
        """How much likelier the chosen token is than `other`, in nats; infinite if unknown."""
        found = self.top[position].get(other) if self.top else None
        return math.inf if found is None else self.logprobs[position] - found


@dataclass(frozen=True)
class Gate:
    """Bounds of a comparison; the defaults demand every token (no near ties)."""

    logprob_bound: float = 0.05
    tie_bound: float = 0.0
    max_ties: float = 0.0
    min_share: float = 0.8
    min_prompts: int = 10
    min_tokens: int = 640


EXACT = Gate()
NEAR_TIES = Gate(tie_bound=0.02, max_ties=0.2)


@dataclass
class Verdict:
    """What a gate found; `ok` is the answer, `problems` the reasons against it."""

    prompts: int = 0
    tokens: int = 0
    worst_logprob: float = 0.0
    ties: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the candidate passed."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        return {
            "ok": self.ok,
            "prompts": self.prompts,
            "tokens": self.tokens,
            "worst_logprob": round(self.worst_logprob, 6) if math.isfinite(self.worst_logprob) else None,
            "ties": self.ties,
            "problems": self.problems,
        }


def compare(reference: Sequence[Generation], candidate: Sequence[Generation], gate: Gate = EXACT) -> Verdict:
    """Put the candidate's generations through the gate; both lists in the same order of prompts."""
    verdict = Verdict(prompts=len(reference))
    if len(reference) != len(candidate):
        verdict.problems.append(f"{len(candidate)} generations for {len(reference)} prompts")
        return verdict
    if len(reference) < gate.min_prompts:
        verdict.problems.append(f"only {len(reference)} prompts, the gate asks for {gate.min_prompts}")
    for prompt, (want, got) in enumerate(zip(reference, candidate, strict=True)):
        _compare_one(prompt, want, got, gate, verdict)
    total = sum(len(want.tokens) for want in reference)
    if total < gate.min_tokens:
        verdict.problems.append(f"only {total} tokens, the gate asks for {gate.min_tokens}")
    if len(verdict.ties) > gate.max_ties * len(reference):
        verdict.problems.append(
            f"{len(verdict.ties)} of {len(reference)} prompts end in a near tie, "
            f"{gate.max_ties:.0%} are allowed"
        )
    if verdict.tokens < gate.min_share * total:
        verdict.problems.append(
            f"only {verdict.tokens} of {total} tokens could be compared, {gate.min_share:.0%} are asked for"
        )
    return verdict


def _compare_one(prompt: int, want: Generation, got: Generation, gate: Gate, verdict: Verdict) -> None:
    shared = 0
    for a, b in zip(want.tokens, got.tokens, strict=False):
        if a != b:
            break
        shared += 1
    verdict.tokens += shared
    for position in range(shared):
        off = abs(want.logprobs[position] - got.logprobs[position])
        off = off if math.isfinite(off) else math.inf
        verdict.worst_logprob = max(verdict.worst_logprob, off)
        if off > gate.logprob_bound:
            verdict.problems.append(
                f"prompt {prompt}, position {position}: log-probabilities {want.logprobs[position]:.4f} and "
                f"{got.logprobs[position]:.4f} differ by more than {gate.logprob_bound}"
            )
            return
    if shared == len(want.tokens) == len(got.tokens):
        return
    if shared in (len(want.tokens), len(got.tokens)):
        verdict.problems.append(
            f"prompt {prompt}: {len(got.tokens)} tokens where the reference has {len(want.tokens)}"
        )
        return
    a, b = want.tokens[shared], got.tokens[shared]
    gaps = (want.gap(shared, b), got.gap(shared, a))
    if gate.tie_bound > 0 and max(map(abs, gaps)) <= gate.tie_bound:
        verdict.ties.append({"prompt": prompt, "position": shared, "tokens": [a, b], "gaps": list(gaps)})
        return
    shown = [f"{gap:.4f}" if math.isfinite(gap) else "unknown" for gap in gaps]
    verdict.problems.append(
        f"prompt {prompt}, position {shared}: token {b} where the reference has {a} "
        f"(gaps {shown[0]} and {shown[1]} nats)"
    )

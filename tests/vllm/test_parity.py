"""The parity gate itself: what it lets through and what it must never let through."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.parity import EXACT, NEAR_TIES, Gate, Generation, compare

LENGTH, PROMPTS = 64, 10


def good(prompts: int = PROMPTS) -> list[Generation]:
    """Generations with a clear margin (second choice 2 nats below)."""
    return [
        Generation(
            tuple(range(p, p + LENGTH)),
            (-0.3,) * LENGTH,
            tuple({p + i: -0.3, 999: -2.3} for i in range(LENGTH)),
        )
        for p in range(prompts)
    ]


def change(
    runs: list[Generation], prompt: int, position: int, token: int, gap: float, *, tail: int = 0
) -> list[Generation]:
    """The same with another token at one position, `gap` nats likelier than the old one; then `tail`s."""
    old = runs[prompt]
    top = list(old.top)
    top[position] = {token: -0.3, old.tokens[position]: -0.3 - gap}
    tokens = (*old.tokens[:position], token, *(tail,) * (len(old.tokens) - position - 1))
    return [*runs[:prompt], Generation(tokens, old.logprobs, tuple(top)), *runs[prompt + 1 :]]


def test_equal_passes() -> None:
    verdict = compare(good(), good(), EXACT)
    assert verdict.ok
    assert verdict.as_dict() == {
        "ok": True,
        "prompts": 10,
        "tokens": 640,
        "worst_logprob": 0.0,
        "ties": [],
        "problems": [],
    }


@pytest.mark.parametrize("gate", [EXACT, NEAR_TIES])
def test_another_token_fails(gate: Gate) -> None:
    verdict = compare(good(), change(good(), 3, 10, 999, 0.001), gate)
    assert not verdict.ok  # the reference holds the two 2 nats apart, whatever the candidate says
    assert "prompt 3, position 10: token 999 where the reference has 13" in verdict.problems[0]


def tied(runs: list[Generation], prompt: int, position: int) -> list[Generation]:
    """The same with token 777 almost as likely as the chosen one at one position."""
    old = runs[prompt]
    top = list(old.top)
    top[position] = {**top[position], 777: -0.301}
    return [*runs[:prompt], dataclasses.replace(old, top=tuple(top)), *runs[prompt + 1 :]]


def test_near_tie_on_both_sides_passes_once_but_not_the_exact_gate() -> None:
    reference, candidate = tied(good(), 3, 60), change(good(), 3, 60, 777, 0.002, tail=5)
    verdict = compare(reference, candidate, NEAR_TIES)
    assert verdict.ok
    assert verdict.tokens == 636
    assert [tie["prompt"] for tie in verdict.ties] == [3]
    assert not compare(reference, candidate, EXACT).ok


def test_tie_on_one_side_only_fails() -> None:
    assert not compare(tied(good(), 3, 60), change(good(), 3, 60, 777, 0.5), NEAR_TIES).ok


def test_tie_without_alternatives_fails() -> None:
    reference = [dataclasses.replace(run, top=()) for run in good()]
    assert not compare(reference, change(good(), 3, 60, 777, 0.0), NEAR_TIES).ok


def test_too_many_ties_fail() -> None:
    reference, candidate = good(), good()
    for prompt in range(3):
        reference, candidate = tied(reference, prompt, 62), change(candidate, prompt, 62, 777, 0.001)
    assert any("near tie" in problem for problem in compare(reference, candidate, NEAR_TIES).problems)


def test_early_ties_leave_too_little_to_compare() -> None:
    reference, candidate = good(), good()
    for prompt in range(2):
        reference, candidate = tied(reference, prompt, 0), change(candidate, prompt, 0, 777, 0.001)
    gate = dataclasses.replace(NEAR_TIES, min_share=0.9)
    assert any("could be compared" in problem for problem in compare(reference, candidate, gate).problems)


def test_shifted_logprobs_fail_though_every_token_is_equal() -> None:
    shifted = [dataclasses.replace(run, logprobs=(-0.36,) * LENGTH) for run in good()]
    verdict = compare(good(), shifted, NEAR_TIES)
    assert not verdict.ok
    assert verdict.tokens == 640
    assert verdict.worst_logprob == pytest.approx(0.06)


def test_nan_fails() -> None:
    broken = [dataclasses.replace(run, logprobs=(float("nan"),) * LENGTH) for run in good()]
    assert not compare(good(), broken, NEAR_TIES).ok


def test_too_little_evidence_fails() -> None:
    assert not compare([], [], EXACT).ok
    assert not compare(good(9), good(9), EXACT).ok
    assert not compare(good(), good(9), EXACT).ok
    short = [Generation(run.tokens[:4], run.logprobs[:4]) for run in good()]
    assert not compare(short, short, EXACT).ok
    assert not compare(good(), short, EXACT).ok


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens but 1 log-prob"):
        Generation((1, 2), (0.0,))
    with pytest.raises(ValueError, match="alternatives for 1"):
        Generation((1, 2), (0.0, 0.0), ({},))


@given(st.integers(0, PROMPTS - 1), st.integers(0, LENGTH - 1), st.floats(0.021, 5.0))
def test_a_real_difference_never_passes(prompt: int, position: int, gap: float) -> None:
    assert not compare(good(), change(good(), prompt, position, 999, gap), NEAR_TIES).ok

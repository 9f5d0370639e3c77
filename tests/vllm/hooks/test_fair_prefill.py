"""The controller of fair prefill, alone and against a simulated scheduler."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sparkloom.vllm.hooks.fair_prefill import GROWTH, LEAST_CHUNK, Controller


def settle(
    control: Controller, decode: float, fixed: float, token: float, steps: int
) -> list[tuple[int, float]]:
    """A long prompt beside running answers on a machine with constant costs: tokens and seconds a step."""
    played, since_chunk = [], 1_000_000
    for _ in range(steps):
        chunk, interval = control.plan()
        since_chunk += 1
        tokens = chunk if since_chunk >= interval else 0
        if tokens:
            since_chunk = 0
        seconds = fixed + tokens * token if tokens else decode
        control.observe(seconds, tokens)
        played.append((tokens, seconds))
    return played


@given(
    share=st.floats(0.05, 0.95),
    gap=st.floats(0.2, 10),
    decode=st.floats(0.01, 0.15),
    extra=st.floats(0.0, 0.04),
    token=st.floats(1e-5, 1e-3),
)
def test_gap_and_share_are_bounded(
    share: float, gap: float, decode: float, extra: float, token: float
) -> None:
    fixed = decode + extra
    played = settle(Controller(share, gap), decode, fixed, token, 600)
    least = LEAST_CHUNK * token + fixed  # a chunk is never smaller than this
    # From the first chunk on. One chunk asks what is slow, tokens or steps, where even the least is too long.
    assert max(seconds for _, seconds in played) <= max(gap, least + LEAST_CHUNK * token) * 1.05
    assert max(seconds for _, seconds in played[200:]) <= max(gap, least) * 1.05
    late = played[200:]
    prefill = sum(seconds - decode for tokens, seconds in late if tokens)
    total = sum(seconds for _, seconds in late)
    assert prefill <= share * total * 1.15 + max(gap, least)


def test_before_anything_is_measured_chunks_are_small_and_rare() -> None:
    assert Controller(0.25, 2.0).plan() == (LEAST_CHUNK, 4)


def test_a_fast_machine_gets_large_chunks() -> None:
    control = Controller(0.3, 2.0)
    settle(control, 0.1, 0.1, 0.0005, 400)
    chunk, interval = control.plan()
    assert 3500 <= chunk <= 3840
    assert 40 <= interval <= 50


def test_chunks_grow_step_by_step() -> None:
    sizes = [tokens for tokens, _ in settle(Controller(0.5, 2.0), 0.05, 0.05, 1e-4, 200) if tokens]
    assert sizes[0] == LEAST_CHUNK
    assert all(after <= GROWTH * before for before, after in itertools.pairwise(sizes))
    assert sizes[-1] > 100 * LEAST_CHUNK


def test_a_fixed_cost_does_not_pass_for_tokens() -> None:
    """A step with a chunk costs 25 ms before its first token: chunks still fill the bound of 50 ms."""
    control = Controller(0.5, 0.05)
    settle(control, 0.003, 0.025, 5e-6, 400)
    assert 4500 <= control.plan()[0] <= 5000


def test_a_fixed_cost_beyond_the_bound_does_not_starve_the_newcomer() -> None:
    control = Controller(0.5, 0.02)
    settle(control, 0.003, 0.03, 1e-5, 400)
    assert control.plan()[0] >= 2900


def test_one_slow_step_is_forgotten() -> None:
    """The first chunk of a new size may compile kernels for seconds."""
    control = Controller(0.3, 2.0)
    control.observe(30.0, 64)
    settle(control, 0.1, 0.1, 0.0005, 2000)
    assert control.plan()[0] >= 3000

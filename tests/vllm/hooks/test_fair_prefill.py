"""The controller of fair prefill, alone and against a simulated scheduler."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkloom.vllm.hooks.fair_prefill import LEAST_CHUNK, Controller


@given(
    share=st.floats(0.05, 0.95),
    gap=st.floats(0.2, 10),
    decode=st.floats(0.01, 0.15),
    token=st.floats(1e-5, 1e-3),
)
def test_gap_and_share_are_bounded(share: float, gap: float, decode: float, token: float) -> None:
    """A long prompt beside running answers on a machine with constant costs, simulated step by step."""
    control = Controller(share, gap)
    spent = {"prefill": 0.0, "decode": 0.0}
    worst, since_chunk = 0.0, 1_000_000
    for step in range(400):
        chunk, interval = control.plan()
        since_chunk += 1
        tokens = chunk if since_chunk >= interval else 0
        if tokens:
            since_chunk = 0
        seconds = decode + tokens * token
        control.observe(seconds, tokens)
        if step >= 100:  # settled
            worst = max(worst, seconds)
            spent["prefill" if tokens else "decode"] += seconds
    least = LEAST_CHUNK * token + decode  # a chunk is never smaller than this
    assert worst <= max(gap, least) * 1.05
    total = sum(spent.values())
    assert spent["prefill"] - decode * 400 <= share * total * 1.15 + max(gap, least)


def test_before_anything_is_measured_chunks_are_small_and_rare() -> None:
    assert Controller(0.25, 2.0).plan() == (256, 4)


def test_a_fast_machine_gets_large_chunks() -> None:
    control = Controller(0.3, 2.0)
    for _ in range(20):
        control.observe(0.1, 0)
        control.observe(0.1 + 256 * 0.0005, 256)
    chunk, interval = control.plan()
    assert 3500 <= chunk <= 3840
    assert 40 <= interval <= 50

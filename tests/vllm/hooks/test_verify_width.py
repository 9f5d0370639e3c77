"""The controller of the verify width, against simulated drafters and machines."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.cluster.settings import graph_sizes
from sparkloom.vllm.hooks import verify_width
from sparkloom.vllm.hooks.shape import HookRefused
from sparkloom.vllm.hooks.width_control import DWELL, LEARN, Controller, Cost, choices

MOST = 7


def drive(
    control: Controller, rates: list[float], steps: int, seed: int = 1, slope: float = 0.08
) -> list[int]:
    """Serve one request for `steps` steps; position i is right with rates[i] if those before are."""
    rng = random.Random(seed)
    widths = []
    for _ in range(steps):
        width = control.choose(1)
        widths.append(width)
        accepted = 0
        while accepted < width and rng.random() < rates[accepted]:
            accepted += 1
        control.observe(width, accepted)
        control.cost.observe(1 + width, 0.05 * (1 + slope * (1 + width)) * rng.uniform(0.97, 1.03))
    return widths


def test_a_few_widths_that_end_with_the_whole_draft() -> None:
    assert choices(7) == (1, 2, 4, 7)
    assert choices(1) == (1,)
    assert choices(4) == (1, 2, 4)
    for most in range(1, 33):
        assert choices(most)[-1] == most
        assert len(choices(most)) <= 6


def test_the_whole_draft_until_something_is_known() -> None:
    assert drive(Controller(MOST), [0.0] * MOST, LEARN) == [MOST] * LEARN


def test_refused_drafts_narrow_and_accepted_ones_widen() -> None:
    control = Controller(MOST)
    drive(control, [0.05] * MOST, 150)
    assert control.width == 1
    widths = drive(control, [0.99] * MOST, 200)
    assert control.width == MOST
    assert list(dict.fromkeys(widths)) == sorted(set(widths))  # it rises without falling back
    drive(control, [0.1] * MOST, 200)
    assert control.width == 1


def test_a_drafter_that_is_right_twice_and_then_wrong_settles_near_two() -> None:
    control = Controller(MOST)
    rates = [0.95, 0.95, 0.05, 0.05, 0.05, 0.05, 0.05]
    widths = drive(control, rates, 800)[200:]
    assert sum(w == 2 for w in widths) > 0.8 * len(widths)  # the rest looks whether the third got better


def test_rows_that_cost_nothing_are_all_verified() -> None:
    control = Controller(MOST)
    drive(control, [0.6] * MOST, 600, slope=0.0)
    assert control.width == MOST


@given(st.lists(st.floats(0, 1), min_size=MOST, max_size=MOST), st.integers(0, 99))
def test_it_dwells_and_stays_among_the_choices(rates: list[float], seed: int) -> None:
    widths = drive(Controller(MOST), rates, 200, seed)
    assert set(widths) <= set(choices(MOST))
    changes = [i for i, (a, b) in enumerate(pairwise(widths)) if a != b]
    assert all(b - a >= DWELL for a, b in pairwise(changes))


@given(st.floats(0.001, 0.2), st.floats(0, 0.5))
def test_the_cost_is_learnt(base: float, slope: float) -> None:
    cost = Cost()
    rng = random.Random(3)
    for _ in range(400):
        rows = 1 + rng.choice(choices(MOST))
        cost.observe(rows, base * (1 + slope * rows))
    assert cost.of(8) / cost.of(2) == pytest.approx((1 + 8 * slope) / (1 + 2 * slope), rel=0.15)
    steady = cost.of(4)
    cost.observe(4, 100 * base)  # a pause is no step
    assert cost.of(4) == steady


def test_vllm_is_asked_for_graphs_of_every_width_at_every_batch() -> None:
    table = verify_width.all_widths([(1, 9, 7)], 4, 7)
    assert table[0] == 0
    assert {w: max(i for i, x in enumerate(table) if x == w) for w in choices(7)} == {
        7: 4,
        4: 8,
        2: 12,
        1: 16,
    }


def test_the_rendered_graph_sizes_hold_a_step_of_each_width() -> None:
    stock, adaptive = graph_sizes(7, 4), graph_sizes(7, 4, adaptive=True)
    assert set(stock) < set(adaptive)
    assert {rows * n for rows in (2, 3, 5, 8) for n in (1, 2, 3, 4)} <= set(adaptive)
    assert graph_sizes(0, 4, adaptive=True) == graph_sizes(0, 4)


def test_a_scheduler_of_another_form_is_refused() -> None:
    class Scheduler:
        def schedule(self) -> None: ...

    with pytest.raises(HookRefused, match="takes the width from elsewhere"):
        verify_width.check(Scheduler)


def test_a_table_by_batch_size_beside_it_is_refused() -> None:
    class Config:
        num_speculative_tokens = 7
        num_speculative_tokens_per_batch_size: object = None

    init = verify_width.configuring(lambda self: None)
    config = Config()
    init(config)
    assert config.num_speculative_tokens_per_batch_size == [(1, verify_width.ANY_BATCH, 7)]
    init(config)  # a copy of the configuration
    config.num_speculative_tokens_per_batch_size = [(1, 4, 3)]
    with pytest.raises(HookRefused, match="both set the width"):
        init(config)

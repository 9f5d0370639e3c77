"""The arithmetic: slices of the edited whole are edits of the slices; size and rounding of a change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.ablit import edit, rules
from sparkloom.ablit.spec import Spec

SPEC = Spec("transplant", {"a.weight": "a.weight"}, "/x", "0" * 64, 1.0, 0.001, 1.0, "/m")


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_projection_takes_the_direction_out() -> None:
    w, r = random(0, 16, 24), random(1, 16)
    after = edit.project(w, r, 1.0)
    assert np.abs(edit.unit(r) @ after).max() < 1e-5
    other = random(2, 16)
    other -= edit.unit(r) * (edit.unit(r) @ other)  # orthogonal directions stay as they were
    np.testing.assert_allclose(other @ after, other @ w, atol=1e-4)


def test_projection_does_not_depend_on_the_length_of_the_direction() -> None:
    w, r = random(0, 16, 24), random(1, 16)
    np.testing.assert_allclose(edit.project(w, 37 * r, 2.0), edit.project(w, r, 2.0), atol=1e-5)


@given(world=st.sampled_from([1, 2, 4]), seed=st.integers(0, 50), strength=st.floats(0.1, 3))
def test_a_ranks_columns_of_the_whole_are_the_edit_of_its_columns(
    world: int, seed: int, strength: float
) -> None:
    """Row-parallel layers (attention's output projection) split the inputs: exact, bit for bit."""
    w, r = random(seed, 12, 16), random(seed + 1, 12)
    whole = edit.project(w, r, strength)
    for rank in range(world):
        alone = edit.project(edit.cut(w, rank, world, 1), r, strength)
        np.testing.assert_array_equal(edit.cut(whole, rank, world, 1), alone)


def test_rows_of_a_column_parallel_layer_need_the_whole_tensor() -> None:
    """Why the loader edits before it cuts: a rank's rows alone do not hold the direction."""
    w, r = random(0, 12, 16), random(1, 12)
    whole = edit.cut(edit.project(w, r, 1.0), 0, 2, 0)
    alone = edit.project(edit.cut(w, 0, 2, 0), r[:6], 1.0)
    assert np.abs(whole - alone).max() > 0.01


def test_cut_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        edit.cut(random(0, 4, 5), 0, 2, 1)


@pytest.mark.parametrize("bad", [np.zeros(4, np.float32), np.full(4, np.nan, np.float32)])
def test_direction_without_a_direction(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="zero or not finite"):
        edit.project(random(0, 4, 4), bad, 1.0)


def test_relative_change() -> None:
    w = random(0, 2000, 3)
    assert edit.relative_change(w, w) == 0
    assert edit.relative_change(w, 1.25 * w) == pytest.approx(0.25, rel=1e-5)
    assert edit.relative_change(w, random(1, 2000, 3)) == pytest.approx(2**0.5, rel=0.05)
    assert edit.relative_change(np.zeros_like(w), w) == float("inf")


def test_bf16_rounds_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    values = np.concatenate([random(0, 1000), np.float32([0, 1.00390625, 1.01171875, -3.0e38, 1e-40])])
    want = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(edit.rounded(values, "BF16"), want)


@pytest.mark.parametrize(
    ("ours", "donor", "words"),
    [
        (("BF16", (4, 6)), ("BF16", (4, 8)), r"shape \[4, 8\], ours is \[4, 6\]"),
        (("BF16", (4, 6)), ("F8_E4M3", (4, 6)), "F8_E4M3, ours is BF16"),
        (("BF16", (4, 6)), ("BF16", (4, 6)), None),
    ],
)
def test_donor_that_does_not_fit(ours: tuple, donor: tuple, words: str | None) -> None:
    problem = rules.donor_problem(SPEC, "a.weight", ours, donor)
    if words is None:
        assert problem is None
    else:
        assert problem is not None
        import re

        assert re.search(words, problem.problem)


def test_exl3_is_refused_with_the_reason() -> None:
    table = {"a.trellis": ("I16", (8, 8, 64)), "a.suh": ("F16", (128,)), "a.svh": ("F16", (128,))}
    problem = rules.target_problem("a.weight", table)
    assert problem is not None
    assert "it is EXL3" in problem.problem
    assert "exl3 quantize" in problem.mend


@pytest.mark.parametrize(
    ("change", "words"), [(0.0, "below"), (0.0005, "below"), (1.4, "above"), (float("inf"), "finite")]
)
def test_unbelievable_change(change: float, words: str) -> None:
    problem = rules.change_problem(SPEC, "a.weight", change)
    assert problem is not None
    assert words in problem.problem
    assert rules.change_problem(SPEC, "a.weight", 0.126) is None

"""The pure rules of the hooks, and their options."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.errors import SparkloomError
from sparkloom.vllm.hooks import no_store, options, pdl_gate, route_keys, shape
from sparkloom.vllm.hooks.install import HOOKS
from sparkloom.vllm.hooks.stop_strings import Sleeper, reasoning_open


def test_every_hook_is_a_switch_of_the_cluster_file() -> None:
    from sparkloom.cluster.serving import Patches

    assert set(HOOKS) <= set(Patches.model_fields)


def test_options_come_from_one_variable() -> None:
    assert options.read({}) == {}
    assert options.read({"SPARKLOOM_PATCHES": '{"pdl_gate": true}'}) == {"pdl_gate": True}
    with pytest.raises(SparkloomError, match="not a JSON object"):
        options.read({"SPARKLOOM_PATCHES": "[1]"})


def test_shapes_are_checked() -> None:
    def upstream(request: int, tokens: int) -> None: ...

    shape.expect_parameters("x", upstream, "request")
    with pytest.raises(shape.HookRefused, match="takes"):
        shape.expect_parameters("x", upstream, "tokens")


@pytest.mark.parametrize(
    ("major", "stock", "want"),
    [(8, False, False), (9, True, True), (10, True, True), (12, True, False)],
)
def test_pdl_is_off_on_capability_12_only(major: int, stock: bool, want: bool) -> None:
    assert pdl_gate.gated(lambda: stock, lambda: major)() is want


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics", "/load", "/health/"])
def test_open_routes(path: str) -> None:
    assert route_keys.is_open(path)


@given(st.lists(st.integers(0, 5), max_size=30), st.booleans(), st.lists(st.integers(1, 4), max_size=10))
def test_the_sleeper_splits_at_the_first_closing_marker(
    tokens: list[int], thinking: bool, cuts: list[int]
) -> None:
    """However the tokens are batched, the same ones count as reasoning (0 opens, 1 closes)."""
    sleeper = Sleeper(0, 1, thinking)
    seen: list[int] = []
    answer: list[int] = []
    rest = list(tokens)
    for n in [*cuts, len(tokens)]:
        batch, rest = rest[:n], rest[n:]
        a, b = sleeper.split(batch)
        assert a + b == batch
        seen, answer = seen + a, answer + b
    awake = thinking or (bool(tokens) and tokens[0] == 0)
    if not awake:
        want = 0
    elif 1 in tokens:
        want = tokens.index(1) + 1
    else:
        want = len(tokens)
    assert (seen, answer) == (tokens[:want], tokens[want:])


def test_the_prompt_says_whether_thinking_is_open() -> None:
    assert reasoning_open([5, 0], 0, 1)
    assert not reasoning_open([0, 5, 1], 0, 1)
    assert not reasoning_open([5], 0, 1)


def test_who_declines_to_be_stored() -> None:
    from types import SimpleNamespace

    def request(extra: object) -> object:
        return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))

    assert no_store.declines(request({no_store.KEY: 1}))
    assert no_store.declines(request({no_store.KEY: "true"}))
    assert not no_store.declines(request({no_store.KEY: 0}))
    assert not no_store.declines(request(None))
    assert not no_store.declines(SimpleNamespace(sampling_params=None))


@pytest.mark.parametrize("name", sorted([*HOOKS.values(), "fair_prefill"]))
def test_a_hook_says_why_and_when_to_drop_it(name: str) -> None:
    text = importlib.import_module(f"sparkloom.vllm.hooks.{name}").__doc__ or ""
    for field in ("Why:", "Upstream:", "issue text:", "Default o", "Drop when:", "Tested:"):
        assert field.lower() in text.lower().replace("\n", " "), field

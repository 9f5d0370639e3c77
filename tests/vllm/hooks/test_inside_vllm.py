"""The installed vLLM with and without the hooks; one process each, because hooks last as long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="no vLLM is installed")

ALL = {
    "stop_strings_after_reasoning": True,
    "key_on_all_routes": True,
    "default_new_tokens": 64,
    "per_request_no_store": True,
    "keep_prefix_share": 0.5,
    "spin_window_ms": 16,
    "pdl_gate": True,
}


def run(options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    script = str(Path(__file__).with_name("inside.py"))
    return subprocess.run(
        [sys.executable, script, json.dumps(options)], capture_output=True, text=True, timeout=300
    )


def look(options: dict[str, Any]) -> dict[str, Any]:
    done = run(options)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    return look({})


@pytest.fixture(scope="module")
def hooked() -> dict[str, Any]:
    return look(ALL)


pytestmark = pytest.mark.heavy


def test_stop_strings_sleep_while_the_model_thinks(hooked: dict[str, Any]) -> None:
    """The same for every batching of the tokens, as speculation makes them."""
    for thinking, off, opened, across, kept in hooked["stops"]:
        assert thinking == ["STOP", "aSTOPb</think>bc", 7]
        assert off == ["STOP", "a", 2]
        assert opened == ["STOP", "<think>STOP</think>a", 5]
        assert across == [None, "STOP</think>a", 3]
        assert kept == ["STOP", "STOP</think>STOP", 3]


def test_stock_vllm_stops_inside_the_thinking(stock: dict[str, Any]) -> None:
    assert stock["stops"][0][0] == ["STOP", "a", 2]  # when this fails, the hook may be dropped


def test_every_route_but_the_harmless_asks_for_the_key(hooked: dict[str, Any]) -> None:
    bare = {path for path, (without, _) in hooked["routes"].items() if without == 200}
    assert bare == {"/health", "/metrics"}
    assert {keyed for _, keyed in hooked["routes"].values()} == {200}


def test_stock_vllm_leaves_invocations_open(stock: dict[str, Any]) -> None:
    assert stock["routes"]["/invocations"][0] == 200  # when this fails, the hook may be dropped


def test_default_new_tokens_is_no_cap(stock: dict[str, Any], hooked: dict[str, Any]) -> None:
    assert hooked["new_tokens"] == [64, 900, 64, 7, True]
    assert stock["new_tokens"] == [990, 900, 90, 7, True]


def test_a_request_that_declines_leaves_no_cached_block(
    stock: dict[str, Any], hooked: dict[str, Any]
) -> None:
    normal, declined = hooked["hits"]
    assert (normal[0], declined) == (0, [0, 0])
    assert normal[1] > 0
    assert stock["hits"] == [normal, normal]


def test_a_kept_prefix_outlives_a_burst_and_never_blocks_it(
    stock: dict[str, Any], hooked: dict[str, Any]
) -> None:
    """Hits of: plain and kept; then two kept groups; then the older and the newer after a third came."""
    assert stock["kept"]["hits"] == [0] * 6
    assert hooked["kept"]["hits"] == [0, 12, 12, 12, 0, 12]
    for found in (stock, hooked):
        assert (found["kept"]["full"], found["kept"]["left"], found["kept"]["reset"]) == (0, 16, True)
    assert hooked["kept"]["kept"] == 0


def test_the_spin_window_is_set(stock: dict[str, Any], hooked: dict[str, Any]) -> None:
    assert (stock["spin"], hooked["spin"]) == (1, pytest.approx(0.016))


def test_a_window_that_loses_wake_ups_is_refused() -> None:
    assert "lose wake-ups" in run({"spin_window_ms": 0.01}).stderr

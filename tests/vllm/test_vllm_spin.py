"""The reader's nap: when it is on, and that vLLM still has the name that it replaces."""

from __future__ import annotations

import pytest
import vllm_upstream as upstream

from sparkloom.errors import SparkloomError
from sparkloom.vllm import spin


@pytest.mark.parametrize(
    ("env", "cores", "nap"),
    [
        ({}, 2, 300e-6),
        ({}, 20, 0.0),
        ({"SPARKLOOM_PROCESSES": "5"}, 4, 300e-6),
        ({"SPARKLOOM_PROCESSES": "5"}, 5, 0.0),
        ({"SPARKLOOM_SPIN_NAP": "off"}, 1, 0.0),
        ({"SPARKLOOM_SPIN_NAP": "on"}, 64, 300e-6),
        ({"SPARKLOOM_SPIN_NAP": "50"}, 64, 50e-6),
        ({"SPARKLOOM_SPIN_NAP": "0"}, 1, 0.0),
        ({"SPARKLOOM_SPIN_NAP": ""}, 64, 0.0),
    ],
)
def test_when_it_naps(env: dict[str, str], cores: int, nap: float) -> None:
    assert spin.nap_seconds(env, cores) == pytest.approx(nap)


@pytest.mark.parametrize(
    "env",
    [
        {"SPARKLOOM_SPIN_NAP": "often"},
        {"SPARKLOOM_SPIN_NAP": "-1"},
        {"SPARKLOOM_SPIN_NAP": "nan"},
        {"SPARKLOOM_PROCESSES": "many"},
        {"SPARKLOOM_PROCESSES": "0"},
    ],
)
def test_wrong_values_are_named(env: dict[str, str]) -> None:
    with pytest.raises(SparkloomError) as error:
        spin.nap_seconds(env, 1)
    assert error.value.field in env


def test_vllm_readers_still_yield_by_the_replaced_name() -> None:
    module = "distributed/device_communicators/shm_broadcast.py"
    assert "sched_yield()" in upstream.definition(module, "SpinCondition.wait")
    assert "import StatelessProcessGroup, sched_yield" in upstream.text(module)


@pytest.mark.heavy
def test_the_nap_replaces_the_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    shm = pytest.importorskip("vllm.distributed.device_communicators.shm_broadcast")
    monkeypatch.setattr(shm, "sched_yield", shm.sched_yield)  # restored after the test
    monkeypatch.setenv("SPARKLOOM_SPIN_NAP", "1000")
    assert spin.install() == pytest.approx(1e-3)
    assert shm.sched_yield.__module__ == "sparkloom.vllm.spin"

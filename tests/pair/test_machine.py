"""The coordinator's machine on scripted days: each failure takes both down, each start passes the gate."""

from __future__ import annotations

import pytest

from sparkloom.errors import SparkloomError
from sparkloom.pair import (
    Cause,
    Drain,
    Drained,
    DumpStacks,
    Judged,
    Limits,
    Order,
    OrderKind,
    Phase,
    Probed,
    RankPhase,
    Reason,
)


def test_a_quiet_start_passes_every_phase(rig) -> None:
    r = rig()
    r.ready()
    assert r.phases() == ["gate", "launching", "loading", "warming", "ready"]
    assert r.pair.generation == 1


@pytest.mark.parametrize(
    ("node", "change", "cause"),
    [
        ("worker", {"alive": False, "exit_status": 0}, Cause.RANK_EXIT),
        ("head", {"alive": False, "exit_status": -9}, Cause.RANK_EXIT),
        ("worker", {"boot_id": "other"}, Cause.HOST_RESET),
        ("worker", {"agent": "another"}, Cause.AGENT_RESTART),
        ("worker", {"generation": 7, "alive": True}, Cause.STALE_RANK),
        ("worker", {"fault": Reason(Cause.TRANSPORT, "NCCL uses sockets")}, Cause.TRANSPORT),
        ("worker", {"refusal": "no"}, Cause.REFUSED),
    ],
)
def test_one_node_in_trouble_takes_both_down_and_both_come_back(rig, node, change, cause) -> None:
    """D5, P28: the pair is one unit of failure."""
    r = rig()
    r.ready()
    r.changes[node] = change
    r.round()
    assert r.pair.phase is Phase.STOPPING or r.pair.phase is Phase.COOLING
    assert r.pair.desired is None
    assert r.pair.reason.cause is cause
    assert r.pair.restarts == {cause: 1}
    r.changes[node] = {}
    r.ready()
    assert r.pair.generation == 2
    order = r.phases()
    assert order[5:] == ["stopping", "cooling", "gate", "launching", "loading", "warming", "ready"]


def test_a_silent_node_costs_the_lease_and_is_waited_for_without_limit(rig) -> None:
    r = rig(lease_s=10)
    r.ready()
    r.silent = {"worker"}
    r.until(Phase.STOPPING, rounds=11)
    assert r.pair.reason.cause is Cause.LEASE_LOST
    r.until(Phase.GATE, rounds=60)
    for _ in range(100):
        r.round(100.0)
    assert r.pair.phase is Phase.GATE
    r.silent = set()
    r.ready()


def test_the_other_rank_is_gone_before_either_starts_again(rig) -> None:
    """D5, P28, P29: all down is confirmed, then both start."""
    r = rig()
    r.ready()
    r.changes["worker"] = {"alive": False, "exit_status": 0}
    r.changes["head"] = {"alive": True, "generation": 1}  # the head hangs on
    for _ in range(20):
        r.round()
        assert r.pair.phase is Phase.STOPPING
        assert r.pair.desired is None
    r.changes["head"] = {}
    r.changes["worker"] = {}
    r.ready()


def test_digest_mismatch_holds_the_gate_then_fails_with_a_reason_and_heals(rig) -> None:
    r = rig(gate_s=30)
    r.changes["worker"] = {"digest": "other"}
    r.until(Phase.FAILED, rounds=40)
    assert r.pair.reason.cause is Cause.DIGEST
    assert "differs from the head's" in r.pair.reason.text
    r.changes["worker"] = {}
    r.ready()


def test_memory_that_stays_away_stops_for_good_and_says_where(rig) -> None:
    """P27: no start before memory is back."""
    r = rig(memory_s=20)
    r.ready()
    r.changes["worker"] = {"alive": False, "memory_back": False}
    r.until(Phase.FAILED, rounds=40)
    assert (r.pair.reason.cause, r.pair.reason.node) == (Cause.MEMORY, "worker")
    r.changes["worker"] = {}
    r.ready()


def test_waits_double_and_the_start_limit_ends_it_with_the_last_reason(rig) -> None:
    """D5, P27: N failures stop it for good, with a reason."""
    r = rig(start_limit=4, wait_first_s=2, wait_max_s=8)
    waits = []
    for _ in range(4):
        r.until(Phase.WARMING, rounds=40)
        r.event(Probed(r.pair.generation, False, "asked 2+2, expected 4, saw 5"))
        waits.append(r.pair.wait_until - r.now)
    assert waits == [2, 4, 8, 8]
    r.until(Phase.FAILED, rounds=40)
    assert r.pair.reason.cause is Cause.START_LIMIT
    assert "expected 4, saw 5" in r.pair.reason.text
    for _ in range(50):
        r.round(1000.0)
    assert r.pair.phase is Phase.FAILED
    r.event(Order(OrderKind.START))
    r.ready()


def test_a_stable_day_forgets_old_failures(rig) -> None:
    r = rig(stable_s=50)
    r.ready()
    r.event(Judged(1, "nothing moves"))
    assert r.pair.streak == 1
    r.ready()
    for _ in range(60):
        r.round()
    assert r.pair.streak == 0
    assert not r.pair.failures


@pytest.mark.parametrize(
    ("stage", "limit"),
    [
        (RankPhase.RENDEZVOUS, "rendezvous_s"),
        (RankPhase.WEIGHTS, "weights_s"),
        (RankPhase.KV, "kv_s"),
        (RankPhase.GRAPHS, "graphs_s"),
    ],
)
def test_every_phase_of_a_load_has_its_deadline_and_leaves_stacks(rig, stage, limit) -> None:
    """P22: phases with their own deadlines, on a fake clock."""
    r = rig(**{limit: 40, "serving_s": 1})
    r.rank = stage
    r.until(Phase.LOADING)
    r.until(Phase.STOPPING, rounds=45)
    assert r.pair.reason.cause is Cause.DEADLINE
    assert stage.value in r.pair.reason.text
    assert any(isinstance(a, DumpStacks) for a in r.actions)


def test_a_probe_that_never_ends_has_a_deadline_too(rig) -> None:
    r = rig(warm_s=30)
    r.until(Phase.WARMING)
    r.until(Phase.STOPPING, rounds=31)
    assert "acceptance probe" in r.pair.reason.text


def test_answers_of_an_older_generation_count_for_nothing(rig) -> None:
    """D5, P29."""
    r = rig()
    r.until(Phase.WARMING)
    r.event(Probed(0, True))
    assert r.pair.phase is Phase.WARMING
    r.event(Probed(1, True))
    r.event(Judged(0, "old"))
    assert r.pair.phase is Phase.READY


def test_stop_ends_down_and_stays_down(rig) -> None:
    r = rig()
    r.ready()
    r.event(Order(OrderKind.STOP))
    r.until(Phase.DOWN, rounds=5)
    for _ in range(20):
        r.round()
    assert r.pair.phase is Phase.DOWN
    r.event(Order(OrderKind.START))
    r.ready()
    assert r.pair.generation == 2


def test_stop_that_leaves_a_rank_says_which(rig) -> None:
    """P32: a stop that does not stop says so."""
    r = rig()
    r.ready()
    r.changes["worker"] = {"alive": True, "generation": 1}
    r.event(Order(OrderKind.STOP))
    r.until(Phase.FAILED, rounds=80)
    assert (r.pair.reason.cause, r.pair.reason.node) == (Cause.STUCK, "worker")


def test_stop_beside_an_unreachable_node_is_not_called_a_success(rig) -> None:
    """P32."""
    r = rig(memory_s=30)
    r.ready()
    r.silent = {"worker"}
    r.event(Order(OrderKind.STOP))
    r.until(Phase.FAILED, rounds=120)
    assert (r.pair.reason.cause, r.pair.reason.node) == (Cause.UNREACHABLE, "worker")
    r.silent = set()
    r.until(Phase.DOWN, rounds=5)


def test_drain_waits_for_running_requests_then_stops(rig) -> None:
    r = rig()
    r.ready()
    r.event(Order(OrderKind.DRAIN))
    assert r.actions[-1] == Drain(1)
    for _ in range(10):
        r.round()
    assert r.pair.phase is Phase.DRAINING
    assert r.pair.desired == 1
    r.event(Drained(1))
    r.until(Phase.DOWN, rounds=5)


def test_restart_drains_with_a_deadline_and_starts_again(rig) -> None:
    r = rig(drain_s=10)
    r.ready()
    r.event(Order(OrderKind.RESTART))
    r.until(Phase.STOPPING, rounds=12)
    r.ready()
    assert r.pair.generation == 2
    assert not r.pair.failures


def test_preflight_blockers_hold_the_gate(rig) -> None:
    r = rig(gate_s=30)
    r.changes["head"] = {"blockers": ("port 8888 is taken",)}
    r.until(Phase.FAILED, rounds=40)
    assert r.pair.reason.text == "port 8888 is taken"


@pytest.mark.parametrize(
    ("values", "field"),
    [({"lease_s": 1}, "agent.lease_s"), ({"stop_s": 5}, "agent.stop_s"), ({"kv_s": -1}, "agent.kv_s")],
)
def test_limits_that_make_no_sense_are_refused(values, field) -> None:
    with pytest.raises(SparkloomError) as caught:
        Limits.of(values)
    assert caught.value.field == field


def test_an_unknown_limit_lists_the_known_ones() -> None:
    with pytest.raises(SparkloomError, match="no such deadline"):
        Limits.of({"gate": 1})

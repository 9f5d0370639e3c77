"""One node's side on scripted beats: once per generation, never an old one, never beyond its lease."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkloom.pair import Beat, End, Follower, Spawn

BEAT = Beat(term=1, seq=1, epoch=1, floor=0, desired=None, digest="same", lease_s=15.0)


def beat(**changes: Any) -> Beat:
    return replace(BEAT, **changes)


def running(generation: int = 4) -> Follower:
    follower = Follower()
    assert follower.beat(beat(desired=generation), "same", 0.0) == [Spawn(generation)]
    return follower


def test_a_rank_is_started_once_per_generation() -> None:
    follower = running(4)
    assert follower.beat(beat(seq=2, desired=4), "same", 1.0) == []
    follower.exited(4, 0)
    assert follower.beat(beat(seq=3, desired=4), "same", 2.0) == []
    assert follower.refusal is None  # the report says that it ended
    assert follower.exit_status == 0
    assert follower.beat(beat(seq=4, desired=5), "same", 3.0) == [Spawn(5)]


def test_an_old_generation_is_refused() -> None:
    """P29: a rank of an older launch must not fill the present one."""
    follower = running(4)
    follower.exited(4, 0)
    assert follower.beat(beat(seq=2, desired=3), "same", 1.0) == []
    assert "generation 3 is over" in (follower.refusal or "")
    assert follower.beat(beat(seq=3, desired=5, floor=5), "same", 2.0) == []
    assert "generation 5 is over" in (follower.refusal or "")


def test_the_old_rank_ends_before_a_new_one_starts() -> None:
    """P28: one pair is one unit of failure, also when a beat was missed in between."""
    follower = running(4)
    actions = follower.beat(beat(seq=2, desired=5, floor=4), "same", 1.0)
    assert [type(a) for a in actions] == [End]
    assert "still lives" in (follower.refusal or "")
    follower.exited(4, 143)
    assert follower.beat(beat(seq=3, desired=5, floor=4), "same", 2.0) == [Spawn(5)]


def test_another_digest_starts_nothing() -> None:
    follower = Follower()
    assert follower.beat(beat(desired=1), "other", 0.0) == []
    assert "this node's digest is other, the launch wants same" in (follower.refusal or "")


def test_a_silent_coordinator_costs_the_rank_once_the_lease_is_over() -> None:
    follower = running()
    assert follower.tick(14.9) == []
    (ended,) = follower.tick(15.0)
    assert isinstance(ended, End)
    assert "within the lease" in ended.why
    assert follower.tick(16.0) == []  # once


def test_late_and_repeated_beats_change_nothing() -> None:
    follower = running()
    assert follower.beat(beat(seq=1, desired=None), "same", 1.0) == []
    assert "not newer" in (follower.refusal or "")
    assert follower.running == 4
    follower.beat(beat(term=2, seq=1), "same", 2.0)
    assert follower.beat(beat(term=1, seq=99, desired=9), "same", 3.0) == []
    assert "term 2 replaced" in (follower.refusal or "")


def test_a_new_coordinator_ends_the_rank_that_it_did_not_start() -> None:
    follower = running(4)
    actions = follower.beat(beat(term=2, seq=1, desired=4), "same", 1.0)
    assert [type(a) for a in actions] == [End]
    assert follower.ending


def test_what_was_written_down_counts_after_a_restart_of_the_agent() -> None:
    follower = Follower()
    follower.adopt(7, 3)
    assert follower.beat(beat(term=3, seq=1, desired=7), "same", 0.0) == []
    assert follower.beat(beat(term=2, seq=9, desired=8), "same", 0.0) == []
    assert follower.beat(beat(term=3, seq=2, desired=8), "same", 0.0) == [Spawn(8)]
    assert [type(a) for a in follower.leave()] == [End]

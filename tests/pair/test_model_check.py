"""Model check: a head, two workers, a lossy network, crashing agents and ranks, against the real machines.

The world below keeps the truth (which processes live); the machines see only what messages tell them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkloom.pair import (
    Beat,
    Drained,
    End,
    Follower,
    Judged,
    Limits,
    Order,
    OrderKind,
    Pair,
    Persist,
    Phase,
    Probed,
    RankPhase,
    Report,
    Spawn,
    Tick,
    Unsaved,
)

NODES = ("head", "one", "two")
LIMITS = Limits.of({"start_limit": 4, "stable_s": 120.0, "gate_s": 120.0})
node_names = st.sampled_from(NODES)


class Node:
    """One node's truth: its agent (follower) and the generation whose processes live there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.agents = 0
        self.boots = 0
        self.follower = Follower()
        self.process: int | None = None
        self.ending = False
        self.status: int | None = None
        self.digest = "a"
        self.memory = True
        self.link = True
        self.rank_phase = RankPhase.STARTING
        self.newest = 0  # what the agent's state file says
        self.term = 0
        self.full = False  # its disk

    def apply(self, actions: list[Spawn | End]) -> None:
        self.term = self.follower.term
        for action in actions:
            if isinstance(action, Spawn):
                assert self.process is None, "a rank was started beside another one"
                assert action.generation > self.newest
                self.process = self.newest = action.generation
                self.ending, self.status, self.rank_phase = False, None, RankPhase.STARTING
            else:
                assert action.generation == self.process
                self.ending = True

    def gone(self, status: int) -> None:
        assert self.process is not None
        generation, self.process, self.ending = self.process, None, False
        self.follower.exited(generation, status)

    def report(self) -> Report:
        follower = self.follower
        return Report(
            node=self.name,
            agent=f"{self.name}-{self.agents}",
            boot_id=str(self.boots),
            term=follower.term,
            epoch=follower.epoch,
            generation=follower.highest,
            alive=follower.running is not None,
            digest=self.digest,
            memory_back=self.memory,
            rank_phase=self.rank_phase if follower.running else RankPhase.ABSENT,
            exit_status=follower.exit_status,
            refusal=follower.refusal,
            blockers=("no space left",) if self.full else (),
        )


class World(RuleBasedStateMachine):
    """The rules are what may happen; the invariants are what must never be."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.nodes = {name: Node(name) for name in NODES}
        self.disk = 0  # what the coordinator wrote down: generation and term
        self.clock = 1  # terms come from the wall clock when the file is lost
        self.disk_term = 1
        self.seq = 0
        self.pair = Pair(NODES, LIMITS, now=self.now)
        self.old_beats: list[tuple[str, Beat]] = []

    # --- the driver that the agent is in reality ---

    def event(self, event: object) -> None:
        unsaved = False
        for action in self.pair.step(event, self.now):  # type: ignore[arg-type]
            if isinstance(action, Persist) and self.nodes["head"].full:
                unsaved = True
            elif isinstance(action, Persist):
                launch = action.generation > self.disk
                self.disk, self.disk_term = action.generation, action.term
                for node in self.nodes.values():
                    assert not launch or node.process is None, "the gate opened beside a living rank"
        if unsaved:
            self.event(Unsaved("no space left"))
            assert not self.pair.phase.running, "a generation that is not on disk was launched"

    def beat_of(self) -> Beat:
        self.seq += 1
        pair = self.pair
        return Beat(
            term=pair.term,
            seq=self.seq,
            epoch=pair.epoch,
            floor=pair.floor,
            desired=pair.desired,
            digest=pair.digest,
            lease_s=LIMITS.lease_s,
            phase=pair.phase,
        )

    def deliver(self, name: str, beat: Beat) -> None:
        node = self.nodes[name]
        node.apply(node.follower.beat(beat, node.digest, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for node in self.nodes.values():
            node.apply(node.follower.tick(self.now))
        self.event(Tick())

    # --- what may happen ---

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 20.0, 70.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(rounds=st.integers(1, 4))
    def quiet_rounds(self, rounds: int) -> None:
        """Ordinary operation: beats reach everyone and ends complete."""
        for _ in range(rounds):
            for name in NODES:
                self.beat(name)
            for node in self.nodes.values():
                if node.ending:
                    node.gone(-15)
            self.pass_time(1.0)

    @rule(name=node_names)
    def beat(self, name: str) -> None:
        beat = self.beat_of()
        self.old_beats = [*self.old_beats[-20:], (name, beat)]
        if self.nodes[name].link:
            self.deliver(name, beat)
            self.event(self.nodes[name].report())

    @rule(name=node_names)
    def beat_whose_answer_is_lost(self, name: str) -> None:
        self.deliver(name, self.beat_of())

    @precondition(lambda self: self.old_beats)
    @rule(data=st.data())
    def late_beat(self, data: st.DataObject) -> None:
        name, beat = data.draw(st.sampled_from(self.old_beats))
        self.deliver(name, beat)

    @rule(name=node_names)
    def cable(self, name: str) -> None:
        self.nodes[name].link = not self.nodes[name].link

    @rule(name=node_names)
    def rank_dies(self, name: str) -> None:
        if self.nodes[name].process is not None:
            self.nodes[name].gone(0)

    @rule(name=node_names)
    def end_completes(self, name: str) -> None:
        if self.nodes[name].ending:
            self.nodes[name].gone(-9)

    @rule(name=node_names, reboot=st.booleans())
    def agent_restarts(self, name: str, reboot: bool) -> None:
        """The rank dies with its agent; the state file survives. On the head the coordinator restarts too."""
        node = self.nodes[name]
        node.process, node.ending = None, False
        node.agents += 1
        node.boots += reboot
        node.follower = Follower()
        node.follower.adopt(node.newest, node.term)
        if name == "head":
            self.coordinator_restarts(lost_disk=False)

    @rule(lost_disk=st.booleans())
    def coordinator_restarts(self, lost_disk: bool) -> None:
        self.seq = 0
        if lost_disk:
            self.disk = self.disk_term = 0
        self.clock += 1
        self.disk_term = max(self.disk_term + 1, self.clock)
        self.pair = Pair(NODES, LIMITS, generation=self.disk, term=self.disk_term, now=self.now)

    @rule(name=node_names, digest=st.sampled_from("ab"))
    def digest_changes(self, name: str, digest: str) -> None:
        self.nodes[name].digest = digest

    @rule(name=node_names, back=st.booleans())
    def memory(self, name: str, back: bool) -> None:
        self.nodes[name].memory = back

    @rule(full=st.booleans())
    def head_s_disk(self, full: bool) -> None:
        self.nodes["head"].full = full

    @rule(name=node_names, phase=st.sampled_from(list(RankPhase)[1:]))
    def rank_moves_on(self, name: str, phase: RankPhase) -> None:
        self.nodes[name].rank_phase = phase

    @rule(ok=st.booleans(), stale=st.booleans())
    def probe_ends(self, ok: bool, stale: bool) -> None:
        self.event(Probed(self.pair.generation - stale, ok))

    @rule(stale=st.booleans())
    def judged_hung(self, stale: bool) -> None:
        self.event(Judged(self.pair.generation - stale, "nothing moves"))

    @rule()
    def drained(self) -> None:
        self.event(Drained(self.pair.generation))

    @rule(kind=st.sampled_from(list(OrderKind)))
    def order(self, kind: OrderKind) -> None:
        self.event(Order(kind))

    # --- what must never be ---

    @invariant()
    def one_generation_at_most(self) -> None:
        alive = {n.process for n in self.nodes.values() if n.process is not None}
        assert len(alive) <= 1, f"generations {alive} are alive together"

    @invariant()
    def nothing_runs_that_nobody_knows(self) -> None:
        for node in self.nodes.values():
            assert node.process == node.follower.running
            assert node.process is None or node.process <= max(self.disk, node.newest)

    @invariant()
    def ready_only_with_every_rank_alive(self) -> None:
        pair = self.pair
        if pair.phase is Phase.READY:
            for name in NODES:
                report = pair.reports[name]
                assert report.alive or report.epoch != pair.epoch
                assert self.now - pair.seen[name] < LIMITS.lease_s

    @invariant()
    def no_rank_outlives_its_lease(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and self.now >= node.follower.lease_until:
                assert node.ending or self.now == node.follower.lease_until

    @invariant()
    def failed_has_a_reason(self) -> None:
        if self.pair.phase is Phase.FAILED:
            assert self.pair.reason is not None
            assert self.pair.reason.text

    def teardown(self) -> None:
        """In a friendly world the pair always ends: ready, down as wanted, or failed for good."""
        for node in self.nodes.values():
            node.link, node.memory, node.digest, node.full = True, True, "a", False
        settled: Callable[[], bool] = lambda: (  # noqa: E731
            self.pair.phase is Phase.READY
            or (self.pair.phase is Phase.DOWN and not self.pair.wanted)
            or (self.pair.phase is Phase.FAILED and not self.pair.heals)
        )
        for _ in range(900):
            self.quiet_rounds(1)
            for node in self.nodes.values():
                if node.process is not None:
                    node.rank_phase = RankPhase.SERVING
            if self.pair.phase is Phase.WARMING:
                self.event(Probed(self.pair.generation, True))
            if self.pair.phase is Phase.DRAINING:
                self.event(Drained(self.pair.generation))
            if settled():
                break
        assert settled(), f"stuck in {self.pair.phase}: {self.pair.reason} {self.pair.holds(self.now)}"
        if self.pair.phase is Phase.READY:
            assert {n.process for n in self.nodes.values()} == {self.pair.generation}


World.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestModel = World.TestCase


def test_a_beat_is_plain_data() -> None:
    beat = Beat(1, 1, 1, 0, None, "d", 15.0)
    assert Beat(**dataclasses.asdict(beat)) == beat

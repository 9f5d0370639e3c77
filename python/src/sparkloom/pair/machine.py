"""The coordinator's state machine: events with a time in, actions out, no I/O.

    down -> gate -> launching -> loading -> warming -> ready -> draining -> stopping -> cooling -> gate
                                            (or down, or failed)

Whatever goes wrong with one rank takes every rank down. A launch waits until every node has said, in
answer to a beat of this very gate, that none of its ranks lives; so two generations are never alive together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sparkloom.pair.limits import Limits
from sparkloom.pair.model import (
    Action,
    Announce,
    Cause,
    Drain,
    Drained,
    DumpStacks,
    Event,
    Judged,
    Order,
    OrderKind,
    Persist,
    Phase,
    Probe,
    Probed,
    RankPhase,
    Reason,
    Report,
    Unsaved,
)
from sparkloom.pair.roll import Roll


class Pair(Roll):
    """State of the pair. `nodes[0]` is the head.

    Args:
        nodes: every node's name, the head's first.
        limits: deadlines.
        generation: the newest generation that an earlier coordinator wrote down.
        term: this coordinator's term: one more than the last one written down.
        wanted: whether the pair shall be up from the start.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        limits: Limits,
        *,
        generation: int = 0,
        term: int = 1,
        wanted: bool = True,
        now: float = 0.0,
    ) -> None:
        super().__init__(nodes, limits, now)
        self.generation = generation
        self.term = term
        self.wanted = wanted
        self.phase = Phase.DOWN
        self.reason: Reason | None = None
        self.failures: deque[float] = deque()
        self.streak = 0  # failures in a row, for the exponential wait
        self.restarts: dict[Cause, int] = {}
        self.wait_until = now
        self.ready_since: float | None = None
        self.stage: RankPhase = RankPhase.ABSENT  # the head's phase within LOADING
        self.stage_since = now
        self.heals = False  # FAILED at the gate, with nothing running: clears when the hold does
        self.launch_agents: dict[str, tuple[str, str]] = {}

    # --- what nodes are told -------------------------------------------------------------------

    @property
    def desired(self) -> int | None:
        """The generation that every node should run now."""
        return self.generation if self.phase.running else None

    @property
    def floor(self) -> int:
        """Generations up to this one are over."""
        return self.generation - 1 if self.phase.running else self.generation

    @property
    def grace_s(self) -> float:
        """SIGTERM to SIGKILL: patient for an operator, short after a failure."""
        ordered = self.reason is None or self.reason.cause is Cause.OPERATOR
        return self.limits.grace_s if ordered else self.limits.fail_grace_s

    # --- events --------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Action]:
        """Take one event at `now` (monotonic seconds); return what to do, in order."""
        actions: list[Action] = []
        match event:
            case Report():
                actions += self._report(event, now)
            case Order():
                actions += self._order(event.kind, now)
            case Probed() if event.generation == self.generation and self.phase is Phase.WARMING:
                if event.ok:
                    self.ready_since = now
                    actions += self._enter(Phase.READY, now)
                else:
                    actions += self._fail(
                        Reason(Cause.PROBE, event.text or "the acceptance probe failed"), now
                    )
            case Judged() if event.generation == self.generation and self.phase in (
                Phase.READY,
                Phase.DRAINING,
            ):
                actions.append(DumpStacks(self.generation, event.text))
                actions += self._fail(Reason(Cause.HANG, event.text), now)
            case Drained() if event.generation == self.generation and self.phase is Phase.DRAINING:
                actions += self._enter(Phase.STOPPING, now)
            case Unsaved():
                actions += self._give_up(Reason(Cause.STATE, event.text, self.head), now, heals=True)
            case _:
                pass
        return actions + self._advance(now)

    def _report(self, report: Report, now: float) -> list[Action]:
        if report.node not in self.nodes:
            return []
        if report.term > self.term:  # this coordinator's file was lost: go above what the node remembers
            self.term = report.term + 1
            return [Persist(self.generation, self.term)]
        self.reports[report.node] = report
        self.seen[report.node] = now
        return self._check(report, now) if self.phase.running else []

    def _check(self, report: Report, now: float) -> list[Action]:
        """A report while a generation runs: anything out of order takes the pair down."""
        node = report.node
        known = self.launch_agents.get(node)
        if known and known != (report.agent, report.boot_id):
            if known[1] != report.boot_id:
                return self._fail(
                    Reason(Cause.HOST_RESET, "the host restarted (its boot id changed)", node), now
                )
            return self._fail(Reason(Cause.AGENT_RESTART, "the agent restarted", node), now)
        if report.fault is not None:
            return self._fail(report.fault, now)
        if report.epoch != self.epoch:
            return []  # an answer to an older beat
        if report.refusal:
            return self._fail(Reason(Cause.REFUSED, report.refusal, node), now)
        if report.alive and report.generation != self.generation:
            text = f"a rank of generation {report.generation} is alive, wanted is {self.generation}"
            return self._fail(Reason(Cause.STALE_RANK, text, node), now)
        if not report.alive and report.generation == self.generation:
            text = f"the rank ended (status {report.exit_status}) during {self.phase}"
            text += f": {report.exit_text}" if report.exit_text else ""
            return self._fail(Reason(Cause.RANK_EXIT, text, node), now)
        if not report.alive and self.phase is not Phase.LAUNCHING:
            return self._fail(Reason(Cause.RANK_EXIT, "the rank is gone", node), now)
        return []

    def _order(self, kind: OrderKind, now: float) -> list[Action]:
        if kind is OrderKind.START:
            self.wanted = True
            was_failed = self.phase is Phase.FAILED
            self._forgive()
            if was_failed:
                return self._enter(Phase.GATE, now)
            return []
        self.wanted = kind is OrderKind.RESTART
        self.reason = Reason(Cause.OPERATOR, f"{kind} by the operator")
        if self.phase is Phase.FAILED:
            self._forgive()
            return self._enter(Phase.STOPPING, now, self.reason)
        if self.phase is Phase.DRAINING and kind is not OrderKind.STOP:
            return []
        if self.phase is Phase.READY and kind is not OrderKind.STOP:
            return [*self._enter(Phase.DRAINING, now, self.reason), Drain(self.generation)]
        if self.phase.running or (self.phase is Phase.GATE and not self.wanted):
            return self._enter(Phase.STOPPING, now, self.reason)
        return []

    # --- time ----------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Action]:
        """Every change that the present state and time call for."""
        actions: list[Action] = []
        for _ in range(len(Phase)):
            step = getattr(self, f"_in_{self.phase}")(now)
            if not step:
                break
            actions += step
        return actions

    def _in_down(self, now: float) -> list[Action]:
        return self._enter(Phase.GATE, now) if self.wanted else []

    def _in_gate(self, now: float) -> list[Action]:
        holds = self.holds(now)
        if not holds:
            self.generation = 1 + max(self.generation, *(r.generation for r in self.reports.values()))
            self.launch_agents = {n: (r.agent, r.boot_id) for n, r in self.reports.items()}
            return [Persist(self.generation, self.term), *self._enter(Phase.LAUNCHING, now)]
        if now - self.since >= self.limits.gate_s:
            lasting = [h for h in holds if h.cause is not Cause.UNREACHABLE]
            if lasting:
                return self._give_up(lasting[0], now, heals=True)
        return []

    def _in_launching(self, now: float) -> list[Action]:
        if lost := self._lost(now):
            return self._fail(lost, now)
        if all(self._fresh(n) and self.reports[n].alive for n in self.nodes):
            self.stage, self.stage_since = RankPhase.STARTING, now
            return self._enter(Phase.LOADING, now)
        if now - self.since >= self.limits.launch_s:
            late = [n for n in self.nodes if not (self._fresh(n) and self.reports[n].alive)]
            return self._late(f"no rank process on {', '.join(late)} after {self.limits.launch_s:g} s", now)
        return []

    def _in_loading(self, now: float) -> list[Action]:
        if lost := self._lost(now):
            return self._fail(lost, now)
        head = self.reports[self.head]
        if head.rank_phase.order > self.stage.order:
            self.stage, self.stage_since = head.rank_phase, now
        if self.stage is RankPhase.SERVING:
            return [*self._enter(Phase.WARMING, now), Probe(self.generation)]
        limit = {
            # Imports count here; a crowded machine takes minutes for them.
            RankPhase.STARTING: self.limits.launch_s + self.limits.rendezvous_s,
            RankPhase.RENDEZVOUS: self.limits.rendezvous_s,
            RankPhase.WEIGHTS: self.limits.weights_s,
            RankPhase.KV: self.limits.kv_s,
            RankPhase.GRAPHS: self.limits.graphs_s + self.limits.serving_s,
        }[self.stage]
        if now - self.stage_since >= limit:
            return self._late(f"the head stayed in {self.stage} for {limit:g} s", now)
        return []

    def _in_warming(self, now: float) -> list[Action]:
        if lost := self._lost(now):
            return self._fail(lost, now)
        if now - self.since >= self.limits.warm_s:
            return self._late(f"the acceptance probe did not end in {self.limits.warm_s:g} s", now)
        return []

    def _in_ready(self, now: float) -> list[Action]:
        if lost := self._lost(now):
            return self._fail(lost, now)
        if self.ready_since is not None and now - self.ready_since >= self.limits.stable_s:
            self.streak = 0
            self.failures.clear()
        return []

    def _in_draining(self, now: float) -> list[Action]:
        if lost := self._lost(now):
            return self._fail(lost, now)
        if now - self.since >= self.limits.drain_s:
            return self._enter(Phase.STOPPING, now, self.reason)
        return []

    def _in_stopping(self, now: float) -> list[Action]:
        left = [n for n in self.nodes if not self._gone(n, now)]
        if not left:
            return self._enter(Phase.COOLING, now, self.reason)
        if now - self.since >= self.limits.stop_s:
            text = f"a rank is still alive {self.limits.stop_s:g} s after the stop"
            text += f" (on {' and '.join(left)})" if left[1:] else ""
            return self._give_up(Reason(Cause.STUCK, text, left[0]), now, heals=True)
        return []

    def _in_cooling(self, now: float) -> list[Action]:
        if self.wanted and len(self.failures) >= self.limits.start_limit:
            last = f"; the last: {self.reason.text}" if self.reason else ""
            text = f"{len(self.failures)} failures within {self.limits.start_window_s:g} s{last}"
            node = self.reason.node if self.reason else None
            return self._give_up(Reason(Cause.START_LIMIT, text, node), now)
        if self.wanted:
            # Unreachable nodes are the gate's business; whoever answers must have its memory back.
            short = [
                n
                for n in self.nodes
                if not self._stale(n, now) and not (self._fresh(n) and self.reports[n].memory_back)
            ]
        else:
            short = [n for n in self.nodes if not (self._fresh(n) and self.reports[n].memory_back)]
        if not short and (now >= self.wait_until or not self.wanted):
            return self._enter(Phase.GATE if self.wanted else Phase.DOWN, now)
        if short and now - self.since >= self.limits.memory_s:
            node = short[0]
            if not self._fresh(node):
                text = "the node does not answer: nobody can say whether its rank is gone"
                return self._give_up(Reason(Cause.UNREACHABLE, text, node), now, heals=True)
            text = f"memory has not come back {self.limits.memory_s:g} s after the stop"
            text += f" (on {' and '.join(short)})" if short[1:] else ""
            return self._give_up(Reason(Cause.MEMORY, text, node), now, heals=True)
        return []

    def _in_failed(self, now: float) -> list[Action]:
        if not self.heals:
            return []
        if self.wanted and not self.holds(now):
            return self._enter(Phase.GATE, now)
        if not self.wanted and all(
            self._fresh(n) and not self.reports[n].alive and self.reports[n].memory_back for n in self.nodes
        ):
            return self._enter(Phase.DOWN, now)
        return []

    # --- changes -------------------------------------------------------------------------------

    def _enter(self, phase: Phase, now: float, reason: Reason | None = None) -> list[Action]:
        self.phase, self.since = phase, now
        self.epoch += 1
        if phase is Phase.READY:
            self.reason = None
        if phase is not Phase.READY and phase is not Phase.DRAINING:
            self.ready_since = None
        return [Announce(phase, self.generation, reason)]

    def _fail(self, reason: Reason, now: float) -> list[Action]:
        """Count a failure and take every rank down."""
        self.reason = reason
        self.restarts[reason.cause] = self.restarts.get(reason.cause, 0) + 1
        while self.failures and now - self.failures[0] >= self.limits.start_window_s:
            self.failures.popleft()
        self.failures.append(now)
        self.streak += 1
        self.wait_until = now + self.limits.wait(self.streak)
        return self._enter(Phase.STOPPING, now, reason)

    def _late(self, text: str, now: float) -> list[Action]:
        return [DumpStacks(self.generation, text), *self._fail(Reason(Cause.DEADLINE, text), now)]

    def _give_up(self, reason: Reason, now: float, *, heals: bool = False) -> list[Action]:
        self.reason, self.heals = reason, heals
        return self._enter(Phase.FAILED, now, reason)

    def _forgive(self) -> None:
        self.failures.clear()
        self.streak, self.wait_until, self.heals = 0, 0.0, False

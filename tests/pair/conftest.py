"""A driver for the state machine with a fake clock and obedient nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkloom.pair import Action, Announce, Event, Limits, Pair, Phase, Probed, RankPhase, Report, Tick


class Rig:
    """Two nodes that do what they are told, unless a test says otherwise."""

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits.of(limits)
        self.now = 0.0
        self.pair = Pair(("head", "worker"), self.limits, now=0.0)
        self.changes: dict[str, dict[str, Any]] = {"head": {}, "worker": {}}
        self.silent: set[str] = set()
        self.rank = RankPhase.SERVING
        self.actions: list[Action] = []

    def report(self, node: str) -> Report:
        desired = self.pair.desired
        made = Report(
            node=node,
            agent=f"agent-{node}",
            boot_id="boot",
            term=self.pair.term,
            epoch=self.pair.epoch,
            generation=self.pair.generation,
            alive=desired is not None,
            digest="same",
            memory_back=True,
            rank_phase=self.rank if desired else RankPhase.ABSENT,
        )
        return replace(made, **self.changes[node])

    def event(self, event: Event) -> None:
        self.actions += self.pair.step(event, self.now)

    def round(self, seconds: float = 1.0) -> None:
        for node in self.pair.nodes:
            if node not in self.silent:
                self.event(self.report(node))
        self.now += seconds
        self.event(Tick())

    def until(self, phase: Phase, rounds: int = 50, seconds: float = 1.0) -> None:
        for _ in range(rounds):
            if self.pair.phase is phase:
                return
            self.round(seconds)
        raise AssertionError(f"{self.pair.phase}, not {phase}: {self.pair.reason}")

    def ready(self) -> None:
        self.until(Phase.WARMING)
        self.event(Probed(self.pair.generation, True))
        assert self.pair.phase is Phase.READY

    def phases(self) -> list[str]:
        return [a.phase.value for a in self.actions if isinstance(a, Announce)]


@pytest.fixture
def rig() -> Callable[..., Rig]:
    return Rig

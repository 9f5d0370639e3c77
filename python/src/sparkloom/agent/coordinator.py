"""The head's driver of the pair's state machine: beats out, reports in, probe, liveness, drain."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import httpx

from sparkloom.agent.capacity import cached_conversation_tokens
from sparkloom.agent.channel import Peer, Unreachable
from sparkloom.agent.node import LocalNode
from sparkloom.agent.settings import Settings
from sparkloom.agent.state import State
from sparkloom.agent.view import build_view
from sparkloom.agent.wire import report_from_json
from sparkloom.errors import SparkloomError
from sparkloom.pair import (
    Announce,
    Beat,
    Drain,
    Drained,
    DumpStacks,
    Event,
    Judged,
    Liveness,
    Order,
    OrderKind,
    Pair,
    Persist,
    Phase,
    Probe,
    Probed,
    Tick,
    Unsaved,
    Verdict,
)
from sparkloom.probe import Check, Result, Target, canary, probe
from sparkloom.probe import Verdict as Level
from sparkloom.probe.client import Client, Refused
from sparkloom.probe.metrics import Acceptance, Engine, acceptance

DUMP_S = 8.0  # the pair stays up this much longer so that stacks can be read


class Coordinator:
    """Runs `Pair` against the local node and the peers."""

    def __init__(
        self,
        settings: Settings,
        local: LocalNode,
        peers: dict[str, Peer],
        state: State,
        checks: list[Check],
        read_api_key: Callable[[], str | None],
    ) -> None:
        self.settings, self.local, self.peers, self.state = settings, local, peers, state
        self.checks, self.read_api_key = checks, read_api_key
        self.key = read_api_key()  # that the present generation was launched with
        self.limits = settings.limits
        state.term += 1
        state.save()
        self.pair = Pair(
            [n.name for n in settings.nodes],
            self.limits,
            generation=max(state.generation, state.launched),
            term=state.term,
            now=time.monotonic(),
        )
        self.seq = 0
        self.facts: dict[str, dict[str, Any]] = {}
        self.problems: dict[str, str] = {}
        self.wakes = {n.name: asyncio.Event() for n in settings.nodes}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.dumping: asyncio.Task[Any] | None = None
        self.liveness: Liveness | None = None
        self.engine: Engine | None = None
        self.engine_at_ready: Engine | None = None
        self.cached_tokens: int | None = None
        self.probe_results: list[Result] = []
        self.history: deque[dict[str, Any]] = deque(maxlen=200)
        self.on_announce: list[Callable[[Announce], None]] = []
        self.view: dict[str, Any] = {}

    # --- running -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Beat every node and watch the engine until cancelled."""
        loops: list[Awaitable[None]] = [self._beats(n.name) for n in self.settings.nodes]
        await asyncio.gather(*loops, self._watch_engine(), self._tick())

    async def _tick(self) -> None:
        while True:
            self.event(Tick())
            await asyncio.sleep(min(0.25, self.limits.beat_s))

    async def _beats(self, name: str) -> None:
        wake = self.wakes[name]
        while True:
            if self.dumping is not None:
                await asyncio.wait([self.dumping], timeout=DUMP_S)
                self.dumping = None
            wake.clear()
            await self._beat(name)
            try:
                await asyncio.wait_for(wake.wait(), self.limits.beat_s)
            except TimeoutError:
                continue

    async def _beat(self, name: str) -> None:
        self.seq += 1
        pair = self.pair
        beat = Beat(
            term=pair.term,
            seq=self.seq,
            epoch=pair.epoch,
            floor=pair.floor,
            desired=pair.desired,
            digest=pair.digest,
            lease_s=self.limits.lease_s,
            grace_s=pair.grace_s,
            phase=pair.phase,
            text=pair.reason.text if pair.reason else "",
        )
        if name == self.settings.node:
            report = await self.local.beat(beat)
            self.facts[name] = self.local.facts()
        else:
            message = {"beat": asdict(beat), "view": self.view}
            try:
                answer = await self.peers[name].send("/v1/beat", message, min(5.0, self.limits.lease_s / 3))
                report = report_from_json(answer["report"], name)
            except (Unreachable, KeyError, TypeError, ValueError) as error:
                self.problems[name] = str(error)
                return
            self.facts[name] = answer.get("facts", {})
        self.problems.pop(name, None)
        self.event(report)

    def event(self, event: Event) -> None:
        """Feed the machine and do what it says."""
        epoch, unsaved = self.pair.epoch, None
        for action in self.pair.step(event, time.monotonic()):
            match action:
                case Persist():
                    self.state.generation, self.state.term = action.generation, action.term
                    try:
                        self.state.save()
                    except SparkloomError as error:
                        print(error, flush=True)
                        unsaved = Unsaved(error.summary)
                case Probe():
                    self._task(self._probe(action.generation))
                case Drain():
                    self._task(self._drain(action.generation))
                case DumpStacks():
                    self.dumping = self._task(self._dump(action))
                case Announce():
                    self._announce(action)
        if unsaved is not None:  # before any beat can go out: all of this is one turn of the loop
            self.event(unsaved)
        if self.pair.epoch != epoch:
            for wake in self.wakes.values():
                wake.set()
        self.view = build_view(self)

    def order(self, kind: OrderKind) -> None:
        """An operator's order."""
        self.event(Order(kind))

    def _task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _announce(self, action: Announce) -> None:
        reason = action.reason
        entry = {
            "at": time.time(),
            "phase": str(action.phase),
            "generation": action.generation,
            "cause": str(reason.cause) if reason else None,
            "node": reason.node if reason else None,
            "text": reason.text if reason else "",
        }
        self.history.append(entry)
        if action.phase is Phase.LAUNCHING:
            with contextlib.suppress(SparkloomError):  # the launch itself will say so
                self.key = self.read_api_key()
        where = f" on {reason.node}" if reason and reason.node else ""
        why = f": {reason.cause}{where}: {reason.text}" if reason else ""
        print(f"{action.phase} (generation {action.generation}){why}", flush=True)
        for tell in self.on_announce:
            tell(action)

    # --- actions -------------------------------------------------------------------------------

    def _target(self) -> Target:
        return Target(
            self.settings.api_url,
            key=self.key,
            model=self.settings.served_name,
            words=self.settings.probe_words,
        )

    async def _probe(self, generation: int) -> None:
        self.probe_results = []
        results = await probe(self._target(), self.checks, progress=self.probe_results.append)
        failed = [r for r in results if r.level is Level.FAIL]
        text = "; ".join(r.summary for r in failed[:3])
        self.event(Probed(generation, not failed, text))

    async def _drain(self, generation: int) -> None:
        while self.pair.phase is Phase.DRAINING and self.pair.generation == generation:
            engine = await self._read_engine()
            if engine is not None and engine.running == 0 and engine.waiting == 0:
                self.event(Drained(generation))
                return
            await asyncio.sleep(0.3)

    async def _dump(self, action: DumpStacks) -> None:
        async def ask(peer: Peer) -> None:
            try:
                await peer.send("/v1/stacks", {"why": action.why}, DUMP_S - 1.0)
            except Unreachable:
                return

        await asyncio.gather(self.local.dump_stacks(action.why), *(ask(p) for p in self.peers.values()))

    async def _read_engine(self) -> Engine | None:
        client = Client(self.settings.api_url, key=self.key, model=self.settings.served_name)
        try:
            return await asyncio.wait_for(client.engine(), 5.0)
        except (TimeoutError, httpx.HTTPError, Refused, ValueError):
            return None
        finally:
            await client.close()

    # --- liveness ------------------------------------------------------------------------------

    async def _watch_engine(self) -> None:
        watched = -1
        while True:
            await asyncio.sleep(self.settings.scrape_s)
            if self.pair.phase not in (Phase.READY, Phase.DRAINING):
                self.liveness, watched, self.engine = None, -1, None
                continue
            generation = self.pair.generation
            engine = await self._read_engine()
            now = time.monotonic()
            if watched != generation:
                self.liveness, watched = Liveness(self.limits, progress_at=now), generation
                self.engine_at_ready = engine
                gib = [f.get("rank", {}).get("kv_gib") for f in self.facts.values()]
                with contextlib.suppress(
                    SparkloomError
                ):  # files that broke later are the next launch's business
                    self.cached_tokens = cached_conversation_tokens(self.local.read_cluster(), gib)
            assert self.liveness is not None
            self.engine = engine or self.engine
            verdict = self.liveness.sample(engine.sample() if engine else None, now)
            if verdict is Verdict.ASK:
                self._task(self._ask(generation, self.liveness))
            self._judge(verdict, generation, self.liveness)

    async def _ask(self, generation: int, liveness: Liveness) -> None:
        check = next(c for c in self.checks if c.kind == "chat")
        answer, text = await canary(self._target(), check, self.limits.canary_s)
        self._judge(liveness.answered(answer, text, time.monotonic()), generation, liveness)

    def _judge(self, verdict: Verdict, generation: int, liveness: Liveness) -> None:
        if verdict is Verdict.HUNG:
            self.event(Judged(generation, liveness.text))

    def acceptance(self) -> Acceptance | None:
        """Accepted drafts since this generation became ready."""
        if self.engine is None or self.engine_at_ready is None:
            return None
        return acceptance(self.engine_at_ready, self.engine)

    def fed(self) -> bool:
        """Whether the service manager's watchdog may be fed."""
        return self.liveness is None or self.liveness.fed(time.monotonic())

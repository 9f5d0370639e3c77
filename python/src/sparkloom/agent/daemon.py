"""The agent as a whole: one process per node, wired together and ended cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkloom.agent import export
from sparkloom.agent.auth import read_key
from sparkloom.agent.channel import Peer, Server, Unreachable
from sparkloom.agent.control import Control
from sparkloom.agent.coordinator import Coordinator
from sparkloom.agent.gate import Blockers
from sparkloom.agent.node import LocalNode
from sparkloom.agent.notify import Notify
from sparkloom.agent.page import StatusPage
from sparkloom.agent.sameness import differing
from sparkloom.agent.settings import Settings, api_key, channel_key, settings_of
from sparkloom.agent.state import Lock, load
from sparkloom.agent.wire import beat_from_json, report_to_json
from sparkloom.cluster import load as load_cluster
from sparkloom.errors import Exit, SparkloomError
from sparkloom.evidence.collect import collect
from sparkloom.logs import last_lines
from sparkloom.pair import Announce, OrderKind, Phase
from sparkloom.preflight import boot
from sparkloom.probe import load_checks, pick
from sparkloom.sysroot import SysRoot


class Agent:
    """One node's agent.

    Args:
        file: the cluster file.
        node: this node's name in it.
        root: where `/proc` and `/sys` are read.
        blockers: findings of a preflight that hold the gate.
        adjust: changes to the settings of the file (tests run two nodes on one machine).
        key_file: the agents' key, where it is not the file's or a credential.

    Raises:
        SparkloomError: another agent of this node runs; a file, key or node name is wrong.
    """

    def __init__(
        self,
        file: Path,
        node: str,
        *,
        root: SysRoot | None = None,
        blockers: Blockers | None = None,
        adjust: Callable[[Settings], Settings] = lambda settings: settings,
        key_file: Path | None = None,
    ) -> None:
        self.file, self.root, self.adjust = file, root or SysRoot(), adjust
        cluster = load_cluster(file)
        self.settings = adjust(settings_of(cluster, node))
        self.key = read_key(key_file) if key_file else channel_key(cluster)
        self.lock = Lock(self.settings.state)
        api_key(cluster) if self.settings.is_head else None  # fails now and not at the first launch
        self.identity = f"{node}-{os.getpid()}-{secrets.token_hex(4)}"
        self.notify = Notify()
        self.lock.take()  # before anything that belongs to a running agent is touched
        self.state = load(self.settings.state)
        self.local = LocalNode(
            self.settings,
            lambda: load_cluster(file),
            self.state,
            root=self.root,
            agent=self.identity,
            blockers=blockers,
        )
        me = self.settings.me
        others = [n for n in self.settings.nodes if n.name != node]
        self.peers = {n.name: Peer(me.name, n.name, n.url, self.key) for n in others}
        self.coordinator: Coordinator | None = None
        if self.settings.is_head:
            checks = pick(load_checks(), chosen=self.settings.checks)
            self.coordinator = Coordinator(
                self.settings, self.local, self.peers, self.state, checks, self._api_key
            )
            self.coordinator.on_announce.append(self._announced)
        self.head_view: dict[str, Any] = {}
        self.head_seen = float("-inf")
        self.head_phase = Phase.DOWN
        self.ready_told = False
        self.ending = asyncio.Event()

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then end the local rank (on the head: the pair) and return.

        Raises:
            SparkloomError: a port, the socket or the state is not usable.
        """
        try:
            await self._run()
        finally:
            self.lock.drop()

    async def _run(self) -> None:
        left = await asyncio.to_thread(self.local.sweep)  # ranks of an agent that was killed
        if left:
            print(f"{left} processes of an earlier rank do not die", flush=True)
        self._look_back()
        self.state.save()  # a disk that cannot be written is said now and not at the first launch
        handlers = {
            "/v1/beat": self._on_beat,
            "/v1/stacks": self._on_stacks,
            "/v1/logs": self._on_logs,
            "/v1/evidence": self._on_evidence,
            "/v1/check": self._on_check,
            "/v1/order": self._on_order,
            "/v1/gather": self._on_gather,
        }
        names = frozenset(n.name for n in self.settings.nodes)
        server = Server(self.settings.node, self.key, names, handlers)
        control = Control(self)
        page = StatusPage(self)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.set)
        me = self.settings.me
        tasks: list[asyncio.Task[None]] = []
        try:
            await _listen(server.start(me.address, me.port), f"{me.address}:{me.port}", "agent.port")
            await control.start(self.settings.socket)
            port = self.settings.status_port
            await _listen(page.start("127.0.0.1", port), f"127.0.0.1:{port}", "agent.status_port")
            print(f"agent of {me.name} listens on {me.address}:{me.port}", flush=True)
            self.notify.status("waiting for the peer" if self.peers else "starting")
            tasks = [asyncio.create_task(self.local.watch()), asyncio.create_task(self._feed())]
            if self.coordinator is not None:
                tasks.append(asyncio.create_task(self.coordinator.run()))
            ended = asyncio.create_task(self.ending.wait())
            done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {ended}:
                task.result()  # a loop that ended did so by an error
            self.notify.send("STOPPING=1", "STATUS=stopping")
            await self._wind_down()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.local.stop()
            await asyncio.to_thread(self.local.sweep)
            await self._last_word()
            for closing in (
                page.stop(),
                control.stop(),
                server.stop(),
                *(p.close() for p in self.peers.values()),
            ):
                await closing

    def _look_back(self) -> None:
        """What the record of the last rank says: it ended with its host, or with an earlier agent."""
        if boot.was_reset(self.settings.state, self.root):
            print("this host was reset while a rank was running: see `sparkloom preflight`", flush=True)
            return  # the record stays for the preflight at the gate
        with contextlib.suppress(OSError):
            boot.record_stop(self.settings.state)

    async def _wind_down(self) -> None:
        """The head takes the pair down first, so that a worker does not have to wait for its lease."""
        if self.coordinator is None:
            return
        self.coordinator.order(OrderKind.STOP)
        limit = time.monotonic() + self.settings.limits.stop_s
        while time.monotonic() < limit and self.coordinator.pair.phase not in (Phase.DOWN, Phase.FAILED):
            if self.coordinator.pair.phase is Phase.COOLING:
                return  # every rank is gone; whether memory is back is the next start's business
            await asyncio.sleep(0.1)

    async def _last_word(self) -> None:
        """A worker answers until the head knows that its rank is gone: else the head waits for its lease."""
        limit = time.monotonic() + 3 * self.settings.limits.beat_s
        while self.head_phase.running or self.head_phase is Phase.STOPPING:
            if time.monotonic() > limit:
                return
            await asyncio.sleep(0.05)

    async def _feed(self) -> None:
        """Feed the watchdog while this loop runs and the engine, if ready, moves."""
        every = min(10.0, (self.notify.watchdog_s or 20.0) / 3)
        while True:
            if self.coordinator is None or self.coordinator.fed():
                self.notify.send("WATCHDOG=1")
            await asyncio.sleep(every)

    def _announced(self, action: Announce) -> None:
        reason = f": {action.reason.text}" if action.reason else ""
        self.notify.status(f"{action.phase}, generation {action.generation}{reason}")
        if action.phase is Phase.READY:
            self._ready()

    def _ready(self) -> None:
        if not self.ready_told:
            self.ready_told = True
            self.notify.send("READY=1")

    def _api_key(self) -> str | None:
        return api_key(load_cluster(self.file))

    # --- messages ------------------------------------------------------------------------------

    async def _on_beat(self, sender: str, message: dict[str, Any]) -> dict[str, Any]:
        if sender != self.settings.head.name or self.settings.is_head:
            raise ValueError(f"{sender} is not this node's coordinator")
        beat = beat_from_json(message["beat"])
        report = await self.local.beat(beat)
        self.head_view, self.head_seen = message.get("view") or {}, time.monotonic()
        self.head_phase = beat.phase
        self.notify.status(f"{beat.phase}: {beat.text}" if beat.text else str(beat.phase))
        if beat.phase is Phase.READY:
            self._ready()
        return {"report": report_to_json(report), "facts": self.local.facts()}

    async def _on_stacks(self, _: str, message: dict[str, Any]) -> dict[str, Any]:
        return {"file": await self.local.dump_stacks(str(message["why"]))}

    async def _on_check(self, *_: Any) -> dict[str, Any]:
        return await self.local.gate.fresh(running=self.local.rank is not None)

    async def _on_logs(self, _: str, message: dict[str, Any]) -> dict[str, Any]:
        return self.local_logs(message.get("generation"), int(message.get("lines", 200)))

    async def _on_evidence(self, *_: Any) -> dict[str, Any]:
        return await asyncio.to_thread(collect, self.settings, self.root, self.local.shelf, self._secrets())

    def _secrets(self) -> tuple[str, ...]:
        """The keys that this node knows: no evidence may carry them."""
        try:
            api = self._api_key()
        except SparkloomError:  # on a worker the file need not exist
            api = None
        return tuple(s for s in (self.key.decode(errors="replace"), api) if s)

    async def _on_order(self, _: str, message: dict[str, Any]) -> dict[str, Any]:
        return await self.order(str(message["order"]))

    async def _on_gather(self, _: str, message: dict[str, Any]) -> dict[str, Any]:
        return await self.gather(str(message["what"]), dict(message.get("message") or {}))

    # --- what operators ask for ----------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """The status document, on a worker as the head last told it."""
        if self.coordinator is not None:
            return {**self.coordinator.view, "from": self.settings.node, "age_s": 0.0}
        age = time.monotonic() - self.head_seen
        if not self.head_view:
            return {"from": self.settings.node, "phase": "unknown", "age_s": None, "nodes": []}
        view = {**self.head_view, "from": self.settings.node, "age_s": round(age, 1)}
        if age > self.settings.limits.lease_s:
            text = f"the head has been silent for {age:.0f} s; this node's rank was ended"
            view |= {"ready": False, "reason": {"cause": "lease_lost", "node": None, "text": text}}
        return view

    def metrics(self) -> bytes:
        """Exposition text of the status document."""
        view = self.view()
        return export.text(lambda: view if "restarts" in view else {})

    def local_logs(self, generation: int | None, lines: int) -> dict[str, Any]:
        """The last lines of one generation's log on this node."""
        try:
            path = self.local.shelf.log(generation)
            found = last_lines(path, lines)
        except (SparkloomError, OSError) as error:
            return {"lines": [], "problem": getattr(error, "summary", str(error))}
        return {"lines": found, "generation": int(path.parent.name.split("-")[1])}

    async def order(self, text: str) -> dict[str, Any]:
        """Take an order here (head) or hand it to the head."""
        if self.coordinator is None:
            return await self._to_head("/v1/order", {"order": text}, 300.0)  # a restart checks all nodes
        kind = OrderKind(text)
        if kind is OrderKind.RESTART and self.coordinator.pair.phase.running:
            # Everything is validated before a running pair is stopped.
            problems = await self._restart_problems()
            if problems:
                return {"accepted": False, "problems": problems}
        self.coordinator.order(kind)
        pair = self.coordinator.pair
        return {"accepted": True, "moment": [pair.term, pair.epoch]}

    async def _restart_problems(self) -> list[str]:
        try:
            fresh = self.adjust(settings_of(load_cluster(self.file), self.settings.node))
        except SparkloomError as error:
            return [str(error)]
        problems = []
        if fresh != self.settings:
            problems.append(
                "the cluster file changes the agent's own settings: restart the agents (systemctl restart)"
            )
        mine = await self.local.gate.fresh(running=self.local.rank is not None)
        problems += [f"{self.settings.node}: {b}" for b in mine["blockers"]]
        for name, peer in self.peers.items():
            try:
                theirs = await peer.send("/v1/check", {}, 120.0)
            except Unreachable as error:
                problems.append(f"{name}: {error}")
                continue
            if names := differing(mine["parts"], theirs["parts"]):
                problems.append(f"{name}: not the same as on the head: {', '.join(names)}")
            problems += [f"{name}: {b}" for b in theirs["blockers"]]
        return problems

    async def gather(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        """Answers of all nodes to `logs` or `evidence`, by node; a silent node's answer is its problem."""
        if what not in ("logs", "evidence"):
            raise ValueError(f"nothing called {what!r} is gathered")
        own = self._on_logs if what == "logs" else self._on_evidence
        if self.coordinator is None:
            found = await self._to_head("/v1/gather", {"what": what, "message": message}, 60.0)
            if found.get("accepted") is not False:
                return found
            # Evidence is wanted most when the head is dead: this node's own is better than none.
            here = await own(self.settings.node, message)
            return {self.settings.head.name: {"problem": found["problems"][0]}, self.settings.node: here}
        found = {self.settings.node: await own(self.settings.node, message)}
        for name, peer in self.peers.items():
            try:
                found[name] = await peer.send(f"/v1/{what}", message, 45.0)
            except Unreachable as error:
                found[name] = {"problem": str(error)}
        return found

    async def _to_head(self, path: str, message: dict[str, Any], timeout: float = 30.0) -> dict[str, Any]:
        try:
            return await self.peers[self.settings.head.name].send(path, message, timeout)
        except Unreachable as error:
            return {"accepted": False, "problems": [f"the head does not answer: {error}"]}


async def _listen(starting: Any, where: str, field: str) -> None:
    try:
        await starting
    except OSError as error:
        raise SparkloomError(
            f"cannot listen on {where}: {error.strerror or error}",
            field=field,
            value=where,
            mend="is the address on this node, and is no other agent running?",
            code=Exit.RESOURCE,
        ) from error


def dumps(value: Any) -> str:
    """JSON for an answer."""
    return json.dumps(value, ensure_ascii=False)

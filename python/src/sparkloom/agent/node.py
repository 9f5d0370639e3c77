"""The local rank: started, watched and ended as the coordinator's beats say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from sparkloom import fsio
from sparkloom.agent import sameness, stacks
from sparkloom.agent.cgroup import RankGroup
from sparkloom.agent.host import HostFacts, ask_gpu, read_host
from sparkloom.agent.launcher import Launch, prepare
from sparkloom.agent.settings import Settings
from sparkloom.agent.state import State
from sparkloom.cluster import Cluster
from sparkloom.errors import SparkloomError
from sparkloom.logs import RankLog, Shelf, Transport
from sparkloom.pair import Beat, Cause, End, Follower, Phase, RankPhase, Reason, Report, Spawn
from sparkloom.ranks import Deadlines, Node, Rank, procs
from sparkloom.sysroot import SysRoot

POLL_S = 0.2
PREFLIGHT_EVERY_S = 20.0
Blockers = Callable[[Cluster, bool], list[str]]  # the cluster; whether a rank of ours runs
RANK_OOM_SCORE = 300  # the kernel shall take the engine and not the agent or sshd
MARK = "SPARKLOOM_AGENT_RANK"


class LocalNode:
    """This node's follower with a real process behind it.

    Args:
        settings: of this node.
        read_cluster: reads the cluster file anew.
        root: where `/proc` and `/sys` are read (tests give a tree).
        agent: identity of this agent process.
        blockers: findings that forbid a start, one sentence each; None: nobody looks.
    """

    def __init__(
        self,
        settings: Settings,
        read_cluster: Callable[[], Cluster],
        state: State,
        *,
        root: SysRoot,
        agent: str,
        blockers: Blockers | None = None,
    ) -> None:
        self.settings, self.read_cluster, self.state, self.root = settings, read_cluster, state, root
        self.agent, self.find_blockers = agent, blockers
        self.follower = Follower()
        self.follower.adopt(state.launched, state.term)
        self.shelf = Shelf(settings.state / "logs", settings.keep)
        self.rank: Rank | None = None
        self.group: RankGroup | None = None
        self.log = RankLog()
        self.exit_text = ""
        self.serving = False
        self.host = HostFacts()
        self.parts: dict[str, str] = {}
        self.digest = ""
        self.blockers: list[str] = []
        self._preflight: asyncio.Task[None] | None = None
        self._preflight_epoch = -1
        self.memory_before: int | None = None
        self.mark = f"{MARK}={settings.cluster}/{settings.node}"
        self._checked = float("-inf")
        self._looked = float("-inf")
        self._gpu_at = float("-inf")
        self._gpu: dict[str, float] = {}
        self._log_at = 0
        self._finishing: asyncio.Task[None] | None = None
        self._http = httpx.AsyncClient(timeout=3.0, trust_env=False)
        self._hygiene_epoch = -1
        self._pair_phase = Phase.DOWN
        self._grace = settings.limits.fail_grace_s
        self._kill_at = float("inf")

    # --- beats ---------------------------------------------------------------------------------

    async def beat(self, beat: Beat) -> Report:
        """Follow one beat and report."""
        now = time.monotonic()
        if self.rank is None:
            await self._check(now, force=beat.desired is not None and beat.desired > self.follower.highest)
            self._look(beat, now)
        before = (self.follower.highest, self.follower.term)
        self._grace = beat.grace_s
        actions = self.follower.beat(beat, self.digest, now)
        if (self.follower.highest, self.follower.term) != before:
            self.state.launched = max(self.state.launched, self.follower.highest)
            self.state.term = max(self.state.term, self.follower.term)
            self.state.save()
        self._apply(actions)
        self._pair_phase = beat.phase
        if beat.phase is Phase.GATE and self.rank is None and beat.epoch != self._hygiene_epoch:
            self._hygiene_epoch = beat.epoch
            self._ask_hygiene()
        return self.report()

    def report(self) -> Report:
        """What this node says of itself now."""
        follower = self.follower
        phase = RankPhase.ABSENT
        if self.rank is not None:
            phase = self.log.phase
            if self.settings.is_head:
                # The log may say so before the socket answers; only an answer counts.
                phase = RankPhase.SERVING if self.serving else min(phase, RankPhase.GRAPHS, key=_order)
            elif self._pair_phase in (Phase.WARMING, Phase.READY, Phase.DRAINING):
                phase = RankPhase.SERVING  # a headless rank has nothing more to say in its log
        return Report(
            node=self.settings.node,
            agent=self.agent,
            boot_id=self.host.boot_id,
            term=follower.term,
            epoch=follower.epoch,
            generation=follower.highest,
            alive=follower.running is not None,
            digest=self.digest,
            memory_back=self.memory_back(),
            rank_phase=phase,
            exit_status=follower.exit_status,
            blockers=tuple(self.blockers),
            refusal=follower.refusal,
            fault=self._fault(),
            exit_text=self.exit_text,
            parts=tuple(sorted(self.parts.items())),
        )

    def facts(self) -> dict[str, Any]:
        """Facts for status and metrics, beside the report."""
        log = self.log
        return {
            "host": self.host.as_dict(),
            "rank": {
                "phase": str(log.phase) if self.rank else "absent",
                "processes": len(self.rank.processes()) if self.rank else 0,
                "memory": self.rank.memory() if self.rank else 0,
                "uptime_s": round(time.monotonic() - self.rank.started, 1) if self.rank else 0.0,
                "transport": log.transport,
                "nccl": log.nccl,
                "weights_gib": log.weights_gib,
                "load_seconds": log.load_seconds,
                "kv_gib": log.kv_gib,
                "kv_tokens": log.kv_tokens,
                "concurrency": log.concurrency,
                "max_length": log.max_length,
                "init_seconds": log.init_seconds,
            },
            "cgroup": self.group.text if self.group else "none",
            "generations": self.shelf.generations(),
        }

    def memory_back(self) -> bool:
        """Whether memory is as it was before the last launch, within the tolerance."""
        if self.memory_before is None or self.rank is not None:
            return True
        return self.host.mem_available >= self.memory_before - self.settings.memory_tolerance

    def _fault(self) -> Reason | None:
        if self.rank is None or not self.settings.require_rdma or self.log.transport is not Transport.SOCKET:
            return None
        text = "NCCL fell back to sockets on a fabric that has RDMA (libibverbs, devices or GID not usable)"
        return Reason(Cause.TRANSPORT, text, self.settings.node)

    # --- following -----------------------------------------------------------------------------

    def _apply(self, actions: list[Spawn | End]) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                self._spawn(action.generation)
            elif self.rank is not None:
                print(f"ending the rank of generation {action.generation}: {action.why}", flush=True)
                self._kill_at = time.monotonic() + self._grace
                self.rank.request_stop()

    def _spawn(self, generation: int) -> None:
        folder = self.shelf.new(generation)
        self.log, self.exit_text, self.serving, self._log_at = RankLog(), "", False, 0
        self.memory_before = self.host.mem_available or None
        try:
            launch = prepare(self.read_cluster(), self.settings.node, generation, self.root)
            self.rank = self._start(launch, generation, folder)
        except (SparkloomError, OSError) as error:
            self.exit_text = error.summary if isinstance(error, SparkloomError) else str(error)
            (folder / "rank.log").write_text(f"{error}\n")
            self.follower.exited(generation, 127)
            return
        print(f"started the rank of generation {generation}", flush=True)
        what = {"generation": generation, "argv": list(launch.argv), "parts": self.parts, "at": time.time()}
        fsio.write_json(folder / "launch.json", what, mode=0o640)

    def _start(self, launch: Launch, generation: int, folder: Path) -> Rank:
        name, value = self.mark.split("=", 1)
        env = {**launch.env, name: value}
        grace = self.settings.limits.grace_s
        rank = Rank(
            "rank",
            Node(self.settings.node, self.settings.me.address, ""),
            launch.argv,
            env,
            folder / "rank.log",
            folder,
            Deadlines(term=grace * 0.7, again=grace * 0.3),
        )
        with contextlib.suppress(OSError):
            Path(f"/proc/{rank.pid}/oom_score_adj").write_text(str(RANK_OOM_SCORE))
        self.group = RankGroup.make(f"rank-{generation}", rank.pid)
        return rank

    async def watch(self) -> None:
        """Poll the rank, its log, the lease and the host until cancelled."""
        while True:
            now = time.monotonic()
            if now >= self.follower.lease_until:
                self._grace = self.settings.limits.fail_grace_s
            self._apply(self.follower.tick(now))
            if self.rank is not None and now >= self._kill_at:
                self.rank.kill()
            self._read_log(now)
            if self.rank is not None and self._finishing is None and self.rank.end() is not None:
                self._finishing = asyncio.create_task(self._finish(self.rank))
            if self.settings.is_head:
                await self._ask_health()
            self.host = read_host(self.root, self._gpu)
            if now - self._gpu_at > 10.0 and self.root.live:
                self._gpu_at = now
                self._gpu = await asyncio.to_thread(ask_gpu)
            await asyncio.sleep(POLL_S)

    async def _finish(self, rank: Rank) -> None:
        """The rank's keeper ended: make sure that nothing of its tree is left, then say so."""
        end = rank.end()
        status = end.status if end else 137
        left = await asyncio.to_thread(self.sweep)
        while left:
            print(f"{left} processes of the ended rank do not die", flush=True)
            await asyncio.sleep(1.0)
            left = await asyncio.to_thread(self.sweep)
        if self.group is not None:
            self.group.remove()
        rank.close()
        self._read_log(time.monotonic())
        asked = self.follower.ending
        self.exit_text = "" if asked else self._exit_text(status)
        generation = self.follower.running or 0
        print(f"the rank of generation {generation} ended with status {status}", flush=True)
        with contextlib.suppress(OSError):
            fsio.write_json(
                rank.log.parent / "exit.json",
                {"status": status, "asked": asked, "error": self.exit_text, "at": time.time()},
                mode=0o640,
            )
        self.rank, self.group, self.serving, self._kill_at = None, None, False, float("inf")
        self.follower.exited(generation, status)
        self._finishing = None

    def _exit_text(self, status: int) -> str:
        """Why it ended, as far as its log of the last half minute tells."""
        if error := self.log.first_error(time.monotonic() - 30.0):
            return error
        return "killed by SIGKILL" if status == 137 else ""

    def sweep(self) -> int:
        """Kill every process that carries this node's mark (of this or an earlier life of the agent)."""
        if self.group is not None:
            self.group.kill()

        def find() -> list[procs.Proc]:
            return [p for p in procs.snapshot().values() if procs.has_mark(p.pid, self.mark)]

        return len(procs.kill_all(find, 5.0))

    async def stop(self) -> None:
        """End the rank and wait until nothing of it is left."""
        self._apply(self.follower.leave())
        limit = time.monotonic() + self.settings.limits.stop_s
        while self.follower.running is not None and time.monotonic() < limit:
            await asyncio.sleep(POLL_S)
        await self._http.aclose()

    async def dump_stacks(self, why: str) -> str:
        """Save the stacks of the rank's processes; return the file's name, or "" without a rank."""
        if self.rank is None:
            return ""
        out = self.rank.log.parent / f"stacks-{int(time.time())}.txt"
        pids = [p.pid for p in self.rank.processes()]
        await stacks.dump(pids, why, out)
        return out.name

    # --- looking -------------------------------------------------------------------------------

    def _read_log(self, now: float) -> None:
        if self.rank is None:
            return
        try:
            with self.rank.log.open("rb") as file:
                file.seek(self._log_at)
                data = file.read(1 << 20)
        except OSError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        self._log_at += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            self.log.feed(line, now)

    async def _ask_health(self) -> None:
        if self.rank is None or self.serving or self.follower.ending:
            return
        try:
            response = await self._http.get(self.settings.api_url + "/health")
            self.serving = response.status_code == 200
        except httpx.HTTPError:
            self.serving = False

    async def _check(self, now: float, force: bool = False) -> None:
        """The digest of what is on disk now, at most every few seconds."""
        if now - self._checked < 3.0 and not force:
            return
        self._checked = now
        try:
            cluster = await asyncio.to_thread(self.read_cluster)
            self.parts = await asyncio.to_thread(sameness.parts, cluster)
        except SparkloomError as error:
            self.parts = {"cluster": f"unreadable: {error.summary}"}
        self.digest = sameness.digest_of(self.parts)

    def _look(self, beat: Beat, now: float) -> None:
        """At the gate, run the preflight beside the beats: it may take longer than a lease."""
        if self.find_blockers is None or beat.phase is not Phase.GATE:
            return
        busy = self._preflight is not None and not self._preflight.done()
        if beat.epoch != self._preflight_epoch:
            self._preflight_epoch = beat.epoch
            self.blockers = ["the preflight is still running"]
        elif busy or now - self._looked < PREFLIGHT_EVERY_S:
            return
        if not busy:
            self._looked = now
            self._preflight = asyncio.create_task(self._run_preflight(beat.epoch))

    async def _run_preflight(self, epoch: int) -> None:
        found = await self._blockers(running=False)
        if epoch == self._preflight_epoch:
            self.blockers = found

    async def _blockers(self, *, running: bool) -> list[str]:
        if self.find_blockers is None:
            return []
        try:
            cluster = await asyncio.to_thread(self.read_cluster)
            return await asyncio.to_thread(self.find_blockers, cluster, running)
        except SparkloomError as error:
            return [f"the cluster file is wrong: {error.summary}"]

    async def fresh_check(self) -> dict[str, Any]:
        """Digest and blockers of the files on disk, also while a rank runs (which keeps its own digest)."""
        kept = (self.parts, self.digest)
        await self._check(time.monotonic(), force=True)
        blockers = await self._blockers(running=self.rank is not None)
        found = {"parts": self.parts, "digest": self.digest, "blockers": blockers}
        if self.rank is not None:
            self.parts, self.digest = kept
        return found

    def _ask_hygiene(self) -> None:
        """Ask the privileged unit to drop clean page cache (we have no such right ourselves)."""
        if self.settings.drop_cache:
            with contextlib.suppress(OSError):
                (self.settings.socket.parent / "hygiene.request").touch()


def _order(phase: RankPhase) -> int:
    return phase.order


def report_to_json(report: Report) -> dict[str, Any]:
    """A report as a message."""
    from dataclasses import asdict

    return dict(json.loads(json.dumps(asdict(report))))


def report_from_json(value: dict[str, Any], node: str) -> Report:
    """A report from a message; the node's name is what the signature says, not what the message says."""
    fault = value.get("fault")
    made = Report(
        **{
            **value,
            "rank_phase": RankPhase(value["rank_phase"]),
            "blockers": tuple(value["blockers"]),
            "parts": tuple((str(k), str(v)) for k, v in value["parts"]),
            "fault": Reason(Cause(fault["cause"]), fault["text"], node) if fault else None,
        }
    )
    return replace(made, node=node)

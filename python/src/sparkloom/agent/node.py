"""The local rank: started, watched and ended as the coordinator's beats say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from sparkloom import fsio
from sparkloom.agent import orphans, stacks
from sparkloom.agent.cgroup import RankGroup
from sparkloom.agent.gate import Blockers, Gate
from sparkloom.agent.host import HostFacts, ask_gpu, read_host
from sparkloom.agent.launcher import Launch, prepare
from sparkloom.agent.settings import Settings
from sparkloom.agent.state import State
from sparkloom.cluster import Cluster
from sparkloom.errors import SparkloomError
from sparkloom.logs import RankLog, Shelf, Tail, Transport
from sparkloom.pair import Beat, Cause, End, Follower, Phase, RankPhase, Reason, Report, Spawn
from sparkloom.preflight import boot
from sparkloom.ranks import Deadlines, Node, Rank, procs
from sparkloom.sysroot import SysRoot

POLL_S = 0.2
SAMPLE_S = 10.0
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
        self.agent = agent
        self.gate = Gate(settings, read_cluster, blockers)
        self.follower = Follower()
        self.follower.adopt(state.launched, state.term)
        self.shelf = Shelf(settings.state / "logs", settings.keep)
        self.rank: Rank | None = None
        self.group: RankGroup | None = None
        self.log = RankLog()
        self.exit_text = ""
        self.serving = False
        self.host = HostFacts()
        self.memory_before: int | None = None
        self.mark = f"{MARK}={settings.cluster}/{settings.node}"
        self._sampled = float("-inf")
        self._sampling: asyncio.Task[None] | None = None
        self._gpu: dict[str, float] = {}
        self._processes, self._memory = 0, 0  # of the rank; bytes
        self._tail: Tail | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._http = httpx.AsyncClient(timeout=3.0, trust_env=False, verify=False)
        self._pair_phase = Phase.DOWN
        self._grace = settings.limits.fail_grace_s
        self._kill_at = float("inf")

    # --- beats ---------------------------------------------------------------------------------

    async def beat(self, beat: Beat) -> Report:
        """Follow one beat and report."""
        now = time.monotonic()
        if self.rank is None:
            launch = beat.desired is not None and beat.desired > self.follower.highest
            await self.gate.read(beat, now, force=launch)
            self.gate.look(beat, now)
            self.gate.ask_hygiene(beat)
        self._grace = beat.grace_s
        actions = self.follower.beat(beat, self.gate.digest, now)
        saved = self._remember()
        for action in actions:
            if isinstance(action, Spawn) and not saved:
                # What is not on disk could be started twice: the launch counts, and it failed.
                self.exit_text = self.state.problem
                self.follower.exited(action.generation, 127)
            else:
                self._apply([action])
        self._pair_phase = beat.phase
        return self.report()

    def _remember(self) -> bool:
        """Write down the newest generation and term, if they are new; whether the disk has them."""
        state, follower = self.state, self.follower
        launched, term = max(state.launched, follower.highest), max(state.term, follower.term)
        if (launched, term) == (state.launched, state.term) and not state.problem:
            return True
        state.launched, state.term = launched, term
        try:
            state.save()
        except SparkloomError as error:
            print(error, flush=True)
            return False
        return True

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
            digest=self.gate.digest,
            memory_back=self.memory_back(),
            rank_phase=phase,
            exit_status=follower.exit_status,
            blockers=(*self.gate.blockers, *([self.state.problem] if self.state.problem else ())),
            refusal=follower.refusal,
            fault=self._fault(),
            exit_text=self.exit_text,
            parts=tuple(sorted(self.gate.parts.items())),
        )

    def facts(self) -> dict[str, Any]:
        """Facts for status and metrics, beside the report."""
        log = self.log
        return {
            "host": self.host.as_dict(),
            "rank": {
                "phase": str(log.phase) if self.rank else "absent",
                "processes": self._processes if self.rank else 0,
                "memory": self._memory if self.rank else 0,
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
        self.log, self.exit_text, self.serving, self._tail = RankLog(), "", False, None
        self.memory_before = self.host.mem_available or None
        folder = self.shelf.path(generation)
        try:
            self.shelf.new(generation)
            launch = prepare(self.read_cluster(), self.settings.node, generation, self.root)
            boot.record_start(self.settings.state, self.root)
            self.rank = self._start(launch, generation, folder)
        except (SparkloomError, OSError) as error:
            self.exit_text = error.summary if isinstance(error, SparkloomError) else str(error)
            print(f"cannot start the rank of generation {generation}: {self.exit_text}", flush=True)
            with contextlib.suppress(OSError):
                (folder / "rank.log").write_text(f"{error}\n")
                boot.record_stop(self.settings.state)
            self.follower.exited(generation, 127)
            return
        self._tail, self._sampled = Tail(self.rank.log), float("-inf")
        self._processes = self._memory = 0
        print(f"started the rank of generation {generation}", flush=True)
        what = {"generation": generation, "argv": list(launch.argv), "parts": self.gate.parts}
        with contextlib.suppress(OSError):  # evidence only
            fsio.write_json(folder / "launch.json", {**what, "at": time.time()}, mode=0o640)

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
        with contextlib.suppress(OSError):  # the mark finds it as well
            orphans.record(self.settings.state, rank.keeper, self.root.text(boot.BOOT_ID) or "")
        self.group = RankGroup.make(f"rank-{generation}", rank.pid)
        return rank

    async def watch(self) -> None:
        """Poll the rank, its log, the lease and the host until cancelled."""
        while True:
            now = time.monotonic()
            if now >= self.follower.lease_until:
                self._grace = self.settings.limits.fail_grace_s
            self._apply(self.follower.tick(now))
            self._turn(now)
            if self.settings.is_head:
                await self._ask_health()
            self.host = read_host(self.root, self._gpu)
            every = SAMPLE_S if self._processes or self.rank is None else 1.0
            if now - self._sampled > every and (self._sampling is None or self._sampling.done()):
                self._sampled = now
                self._sampling = asyncio.create_task(self._sample(self.rank))
            await asyncio.sleep(POLL_S)

    async def _sample(self, rank: Rank | None) -> None:
        """What may take long or hang, beside `watch`: a wedged driver must not keep the lease from ending."""
        if rank is not None:
            self._processes = len(await asyncio.to_thread(rank.processes))
            self._memory = await asyncio.to_thread(rank.memory)
        if self.root.live:
            self._gpu = await asyncio.to_thread(ask_gpu)

    def _turn(self, now: float) -> None:
        """One look at the rank: its log, its end, the time to kill it."""
        if self.rank is None:
            return
        if now >= self._kill_at:
            self.rank.kill()
        self._read_log(now)
        if self._finishing is None and self.rank.end() is not None:
            self._finishing = asyncio.create_task(self._finish(self.rank))

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
        self._read_log(time.monotonic(), final=True)
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
            boot.record_stop(self.settings.state)
        self.rank, self.group, self.serving, self._kill_at = None, None, False, float("inf")
        self.follower.exited(generation, status)
        self._finishing = None

    def _exit_text(self, status: int) -> str:
        """Why it ended, as far as its log of the last half minute tells."""
        error = self.log.first_error(time.monotonic() - 30.0)
        if status == 137:  # what the log says then is mostly what others of its processes made of it
            return f"killed by SIGKILL; its log: {error}" if error else "killed by SIGKILL"
        return error

    def sweep(self) -> int:
        """Kill every process of the rank, of this or an earlier life of the agent; how many live on."""
        if self.group is not None:
            self.group.kill()
        boot_id = self.root.text(boot.BOOT_ID) or ""
        left = procs.kill_all(lambda: orphans.find(self.settings.state, self.mark, boot_id), 5.0)
        if not left:
            orphans.forget(self.settings.state)
        return len(left)

    async def stop(self) -> None:
        """End the rank and wait until nothing of it is left; `watch` may have ended already."""
        self._apply(self.follower.leave())
        limit = time.monotonic() + self.settings.limits.stop_s
        while self.follower.running is not None and time.monotonic() < limit:
            self._turn(time.monotonic())
            await asyncio.sleep(POLL_S)
        await self._http.aclose()

    async def dump_stacks(self, why: str) -> str:
        """Save the stacks of the rank's processes; return the file's name, or "" without a rank."""
        if self.rank is None:
            return ""
        out = self.rank.log.parent / f"stacks-{int(time.time())}.txt"
        pids = [p.pid for p in self.rank.processes()]
        await stacks.dump(pids, why, out, spy=stacks.find())
        return out.name

    # --- looking -------------------------------------------------------------------------------

    def _read_log(self, now: float, *, final: bool = False) -> None:
        if self._tail is None:
            return
        for line in self._tail.lines(final=final):
            self.log.feed(line, now)
        if self._tail.trim():
            print(f"the log of the rank outgrew its limit and was cut: {self._tail.path}", flush=True)

    async def _ask_health(self) -> None:
        if self.rank is None or self.serving or self.follower.ending:
            return
        try:
            response = await self._http.get(self.settings.api_url + "/health")
            self.serving = response.status_code == 200
        except httpx.HTTPError:
            self.serving = False


def _order(phase: RankPhase) -> int:
    return phase.order

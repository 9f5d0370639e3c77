"""The cases: what is broken, what must be seen, how the break is mended when a person would have to.

Only the crash loop takes an order to come back: it stops for good, by design.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkloom.errors import Exit, SparkloomError
from sparkloom.pair import Cause
from sparkloom.ranks import procs
from sparkloom.testing.chaos.world import GIB, World

View = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        causes: the pair must name one of these as its reason.
        act: breaks it and, where needed, mends it; returns when the pair may come back.
        stub_only: a fault that only a scripted engine can show.
        netns: needs network namespaces.
        down: False where the pair must not go down at all.
    """

    name: str
    what: str
    causes: tuple[Cause, ...]
    act: Callable[[World], None]
    stub_only: bool = False
    netns: bool = False
    down: bool = True


def _hold(world: World, cause: Cause, seconds: float = 30.0) -> View:
    """Wait until the pair is down or at the gate and names `cause`."""

    def named(view: View) -> bool:
        reasons = [view.get("reason"), *view.get("holds", [])]
        return any(r and r["cause"] == cause for r in reasons) and view["phase"] in ("gate", "failed")

    return world.until(f"the reason {cause}", named, seconds)


def _failed(world: World, cause: Cause, seconds: float) -> View:
    return world.until(
        f"failed for {cause}",
        lambda v: v.get("phase") == "failed" and v["reason"]["cause"] == cause,
        seconds,
    )


def kill_worker(world: World) -> None:
    world.signal_rank("worker")


def kill_head(world: World) -> None:
    world.signal_rank("head")


def kill_both(world: World) -> None:
    world.signal_rank("head")
    world.signal_rank("worker")


def kill_api_only(world: World) -> None:
    """SIGKILL the head's first process alone: its children live on."""
    first = min(world.engines("head"), key=lambda p: p.start)
    procs.send(first, signal.SIGKILL)


def stop_worker(world: World) -> None:
    """A hang: the worker's processes exist and do nothing."""
    world.signal_rank("worker", signal.SIGSTOP)


def cable(world: World) -> None:
    """Pull the cable, wait until the pair is down, plug it in again."""
    world.network.cable(False)
    try:
        world.until("the pair down", lambda v: v.get("phase") not in ("ready", None), 60.0)
    finally:
        world.network.cable(True)


def short_flap(world: World) -> None:
    """The cable is out for less than the lease: nothing may happen."""
    world.network.cable(False)
    time.sleep(1.0)
    world.network.cable(True)
    time.sleep(3.0)


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def stale_rank(world: World) -> None:
    """The worker's agent and keeper vanish, its rank lives on: the next agent must find and end it.

    A process of vLLM that can run notices that its parent is gone and ends: real ranks are stopped as soon as
    the keeper is dead. Not before: the kernel hangs up on stopped processes whose group loses its keeper.
    """
    rank, keepers = world.engines("worker"), world.keepers("worker")
    for keeper in keepers:  # first: it would end the rank when its agent dies
        procs.send(keeper, signal.SIGKILL)
    while not world.stub and not all(_dead(keeper.pid) for keeper in keepers):
        pass
    if not world.stub:
        for process in rank:
            procs.send(process, signal.SIGSTOP)
    world.kill_agent("worker")
    if not world.engines("worker"):
        raise SparkloomError("the stale rank did not survive its keeper", code=Exit.INTERNAL)
    world.start_agent("worker")


def coordinator(world: World) -> None:
    """The head's agent is killed and started again."""
    world.kill_agent("head")
    time.sleep(0.5)
    world.start_agent("head")


def worker_agent(world: World) -> None:
    world.kill_agent("worker")
    time.sleep(0.5)
    world.start_agent("worker")


def host_reset(world: World) -> None:
    """The worker's machine restarts: everything of it is gone and its boot id is new."""
    world.kill_agent("worker")
    for p in world.rank_processes("worker"):
        procs.send(p, signal.SIGKILL)
    world.boot("worker")
    world.start_agent("worker")


def wrong_key(world: World) -> None:
    """The worker's agent comes back with another key; then somebody corrects it."""
    world.write_key("worker", "0" * 64)
    world.kill_agent("worker")
    world.start_agent("worker")

    def refused(view: View) -> bool:
        worker: View = next((n for n in view.get("nodes", []) if n["name"] == "worker"), {})
        return view.get("phase") == "gate" and "signature" in worker.get("problem", "")

    world.until("a refused signature", refused, 60.0)
    world.write_key("worker", world.key)
    world.kill_agent("worker")
    world.start_agent("worker")


def digest(world: World) -> None:
    """The worker's cluster file differs; a rank's death then meets the gate; then the file is corrected."""
    world.write_cluster("worker", memory={"return_tolerance_bytes": GIB + 1})
    try:
        world.order("restart")
    except SparkloomError as refused:
        if "cluster" not in refused.detail:
            raise
    else:
        raise SparkloomError("a restart with different files was not refused", code=Exit.CHECK)
    if not world.status().get("ready"):
        raise SparkloomError("the refused restart took the pair down", code=Exit.CHECK)
    world.signal_rank("worker")
    _hold(world, Cause.DIGEST)
    world.write_cluster("worker")


def crash_loop(world: World) -> None:
    """The model folder is broken: the pair gives up with a reason; mended, an order starts it again."""
    config = world.model / "config.json"
    away = world.model / "config.json.away"
    config.rename(away)
    try:
        world.signal_rank("worker")
        _failed(world, Cause.START_LIMIT, 240.0)
    finally:
        away.rename(config)
    world.order("start")


def slow_memory(world: World) -> None:
    """After the stop the worker's memory comes back late; nothing may start before it is."""
    world.memory("worker", 20 * GIB)
    world.signal_rank("worker")
    view = world.until("cooling", lambda v: v.get("phase") == "cooling", 60.0)
    begin, generation = time.monotonic(), view["generation"]
    while time.monotonic() - begin < 2.0:
        view = world.status()
        if view.get("phase") not in ("cooling", "failed") or view["generation"] != generation:
            raise SparkloomError(f"{view.get('phase')} before memory was back", code=Exit.CHECK)
        time.sleep(0.1)
    world.memory("worker", 64 * GIB)


def memory_never(world: World) -> None:
    """Memory stays away past the deadline: failed with the node's name; it heals when memory is back."""
    world.memory("worker", 20 * GIB)
    world.signal_rank("worker")
    view = _failed(world, Cause.MEMORY, 120.0)
    if view["reason"]["node"] != "worker":
        raise SparkloomError("the wrong node is named", value=view["reason"], code=Exit.CHECK)
    world.memory("worker", 64 * GIB)


def wrong_answer(world: World) -> None:
    """The engine turns wrong under load: a tiny checked generation sees it."""
    world.script({"mode": "wrong-answer", "load_s": 0.2})
    world.until("the pair down", lambda v: v.get("phase") != "ready", 60.0)
    world.script({"load_s": 0.2})


def never_generates(world: World) -> None:
    """Requests hang inside the engine while `/health` says 200."""
    world.script({"mode": "never-generates", "load_s": 0.2})
    world.until("the pair down", lambda v: v.get("phase") != "ready", 30.0)
    world.script({"load_s": 0.2})


def slow_prefill(world: World) -> None:
    """A prefill longer than every liveness deadline: it must live."""
    world.script({"mode": "slow-prefill", "prefill_s": 12.0, "load_s": 0.2})
    time.sleep(14.0)
    world.script({"load_s": 0.2})


def load_hang(world: World) -> None:
    """The next load never ends: its deadline does."""
    world.script({"load_s": 4000})
    world.signal_rank("worker")
    world.until(
        "a load deadline",
        lambda v: (v.get("reason") or {}).get("cause") == Cause.DEADLINE,
        60.0,
    )
    world.script({"load_s": 0.2})


# The engine may notice a lost worker before its agent is missed: a request then ends the head's rank.
WORKER_GONE = (Cause.AGENT_RESTART, Cause.LEASE_LOST, Cause.RANK_EXIT)

CASES: tuple[Case, ...] = (
    Case("kill-worker", "SIGKILL the worker's rank", (Cause.RANK_EXIT,), kill_worker),
    Case("kill-head", "SIGKILL the head's rank", (Cause.RANK_EXIT,), kill_head),
    Case("kill-both", "SIGKILL both ranks at once", (Cause.RANK_EXIT,), kill_both),
    Case("kill-api", "SIGKILL the head's API process alone", (Cause.RANK_EXIT,), kill_api_only),
    Case("hang-worker", "SIGSTOP the worker's rank", (Cause.HANG,), stop_worker),
    Case("cable", "cable out until the lease ends", (Cause.LEASE_LOST,), cable, netns=True),
    Case("short-flap", "cable out for less than the lease", (), short_flap, netns=True, down=False),
    Case(
        "stale-rank",
        "a rank outlives its agent and keeper",
        WORKER_GONE,
        stale_rank,
    ),
    Case("coordinator", "SIGKILL the head's agent, start it again", (), coordinator),
    Case(
        "worker-agent",
        "SIGKILL the worker's agent, start it again",
        WORKER_GONE,
        worker_agent,
    ),
    Case("host-reset", "the worker's machine restarts", (Cause.HOST_RESET, *WORKER_GONE), host_reset),
    Case(
        "wrong-key",
        "the worker's agent has another key",
        WORKER_GONE,
        wrong_key,
    ),
    Case("digest", "the worker's cluster file differs", (Cause.RANK_EXIT,), digest),
    Case("crash-loop", "the model folder is broken", (Cause.RANK_EXIT,), crash_loop),
    Case("slow-memory", "memory comes back late", (Cause.RANK_EXIT,), slow_memory),
    Case("memory-never", "memory stays away past its deadline", (Cause.RANK_EXIT,), memory_never),
    Case("wrong-answer", "the engine answers wrongly", (Cause.HANG,), wrong_answer, stub_only=True),
    Case(
        "never-generates",
        "requests hang, /health says 200",
        (Cause.HANG,),
        never_generates,
        stub_only=True,
    ),
    Case("load-hang", "a load that never ends", (Cause.RANK_EXIT,), load_hang, stub_only=True),
    Case(
        "slow-prefill", "a prefill longer than every deadline", (), slow_prefill, stub_only=True, down=False
    ),
)

"""What a node says before a launch: the digest of what is on its disk, and what its preflight found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from sparkloom.agent import sameness
from sparkloom.agent.settings import Settings
from sparkloom.cluster import Cluster
from sparkloom.errors import SparkloomError
from sparkloom.pair import Beat, Phase

DIGEST_EVERY_S = 3.0
PREFLIGHT_EVERY_S = 20.0
Blockers = Callable[[Cluster, bool], list[str]]  # the cluster; whether a rank of ours runs


class Gate:
    """Digest and blockers of one node.

    Args:
        read_cluster: reads the cluster file anew.
        find: findings that forbid a start, one sentence each; None: nobody looks.
    """

    def __init__(
        self, settings: Settings, read_cluster: Callable[[], Cluster], find: Blockers | None = None
    ) -> None:
        self.settings, self.read_cluster, self.find = settings, read_cluster, find
        self.parts: dict[str, str] = {}
        self.digest = ""
        self.blockers: list[str] = []
        self._read_at, self._read_epoch = float("-inf"), -1
        self._looked = float("-inf")
        self._look_task: asyncio.Task[None] | None = None
        self._look_epoch = self._task_epoch = -1
        self._hygiene_epoch = -1

    async def read(self, beat: Beat, now: float, *, force: bool = False) -> None:
        """The digest of what is on disk now: at each new gate, else at most every few seconds."""
        anew = beat.phase is Phase.GATE and beat.epoch != self._read_epoch
        if now - self._read_at < DIGEST_EVERY_S and not (force or anew):
            return
        self._read_at, self._read_epoch = now, beat.epoch
        self.parts = await self._parts()
        self.digest = sameness.digest_of(self.parts)

    async def _parts(self) -> dict[str, str]:
        try:
            cluster = await asyncio.to_thread(self.read_cluster)
            return await asyncio.to_thread(sameness.parts, cluster)
        except SparkloomError as error:
            return {"cluster": f"unreadable: {error.summary}"}

    def look(self, beat: Beat, now: float) -> None:
        """At the gate, run the preflight beside the beats: it may take longer than a lease."""
        if self.find is None or beat.phase is not Phase.GATE:
            return
        busy = self._look_task is not None and not self._look_task.done()
        if beat.epoch != self._look_epoch:
            self._look_epoch = beat.epoch
            self.blockers = ["the preflight is still running"]
        due = beat.epoch != self._task_epoch or now - self._looked >= PREFLIGHT_EVERY_S
        if due and not busy:
            self._looked, self._task_epoch = now, beat.epoch
            self._look_task = asyncio.create_task(self._preflight(beat.epoch))

    async def _preflight(self, epoch: int) -> None:
        found = await self._find(running=False)
        if epoch == self._look_epoch:
            self.blockers = found

    async def _find(self, *, running: bool) -> list[str]:
        if self.find is None:
            return []
        try:
            cluster = await asyncio.to_thread(self.read_cluster)
            return await asyncio.to_thread(self.find, cluster, running)
        except SparkloomError as error:
            return [f"the cluster file is wrong: {error.summary}"]
        except Exception as error:  # a check that breaks must hold the gate and say so
            return [f"the preflight itself failed: {type(error).__name__}: {error}"]

    async def fresh(self, *, running: bool) -> dict[str, Any]:
        """Digest and blockers of the files on disk; what a running rank was started with stays as it is."""
        parts = await self._parts()
        return {
            "parts": parts,
            "digest": sameness.digest_of(parts),
            "blockers": await self._find(running=running),
        }

    def ask_hygiene(self, beat: Beat) -> None:
        """Once per gate, ask the privileged unit to drop clean page cache (we have no such right)."""
        if beat.phase is not Phase.GATE or beat.epoch == self._hygiene_epoch:
            return
        self._hygiene_epoch = beat.epoch
        if self.settings.drop_cache:
            with contextlib.suppress(OSError):
                (self.settings.socket.parent / "hygiene.request").touch()

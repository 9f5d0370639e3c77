"""One node's side: obeys beats, refuses old generations, ends its rank when the lease runs out."""

from __future__ import annotations

from dataclasses import dataclass

from sparkloom.pair.model import Beat


@dataclass(frozen=True)
class Spawn:
    """Start this node's rank of a generation."""

    generation: int


@dataclass(frozen=True)
class End:
    """End this node's rank, all of its processes: SIGTERM, a grace, SIGKILL."""

    generation: int
    why: str


@dataclass
class Follower:
    """State of one node. `exited` must be called only when no process of the rank is left.

    A rank is started at most once per generation, never beside another one, never below the floor.
    """

    highest: int = 0
    running: int | None = None
    ending: bool = False
    exit_status: int | None = None
    refusal: str | None = None
    lease_until: float = 0.0
    term: int = 0
    seq: int = -1
    epoch: int = -1
    floor: int = 0

    def beat(self, beat: Beat, digest: str, now: float) -> list[Spawn | End]:
        """Follow one beat; `digest` is this node's own, `now` its own monotonic clock."""
        if beat.term < self.term:
            self.refusal = f"a beat of term {beat.term}, which term {self.term} replaced"
            return []
        if beat.term == self.term and beat.seq <= self.seq:
            self.refusal = f"beat {beat.seq} is not newer than {self.seq}"
            return []
        actions: list[Spawn | End] = []
        if beat.term > self.term:
            self.term = beat.term
            actions += self._end("the coordinator was replaced")
        self.seq, self.epoch = beat.seq, beat.epoch
        self.floor = max(self.floor, beat.floor)
        self.lease_until = now + beat.lease_s
        self.refusal = None
        if self.running is not None and (beat.desired != self.running or self.running <= self.floor):
            actions += self._end("the coordinator wants it down")
        if beat.desired is not None and beat.desired != self.running:
            actions += self._launch(beat.desired, beat.digest, digest)
        return actions

    def _launch(self, generation: int, wanted: str, digest: str) -> list[Spawn | End]:
        if generation == self.highest:
            return []  # it ran here and ended; the report says so
        if generation < self.highest or generation <= self.floor:
            self.refusal = f"generation {generation} is over (newest here: {max(self.highest, self.floor)})"
        elif self.running is not None:
            self.refusal = f"a rank of generation {self.running} still lives here"
        elif wanted != digest:
            self.refusal = f"this node's digest is {digest[:12]}, the launch wants {wanted[:12]}"
        else:
            self.highest = self.running = generation
            self.ending, self.exit_status = False, None
            return [Spawn(generation)]
        return []

    def _end(self, why: str) -> list[Spawn | End]:
        if self.running is None or self.ending:
            return []
        self.ending = True
        return [End(self.running, why)]

    def tick(self, now: float) -> list[Spawn | End]:
        """End the rank if the lease ran out."""
        if self.running is not None and now >= self.lease_until:
            return self._end("no beat of the coordinator within the lease")
        return []

    def adopt(self, generation: int, term: int) -> None:
        """Know what an earlier life of this agent wrote down."""
        self.highest = max(self.highest, generation)
        self.term = max(self.term, term)

    def exited(self, generation: int, status: int) -> None:
        """Every process of the rank is gone."""
        if generation == self.running:
            self.running, self.ending, self.exit_status = None, False, status

    def leave(self) -> list[Spawn | End]:
        """End the rank because this agent itself stops."""
        return self._end("the agent stops")

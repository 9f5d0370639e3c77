"""The words that the coordinator and the nodes exchange: phases, events, actions, reports, beats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where the pair as a whole stands."""

    DOWN = "down"
    GATE = "gate"
    LAUNCHING = "launching"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    COOLING = "cooling"
    FAILED = "failed"

    @property
    def running(self) -> bool:
        """Whether ranks of the current generation should be alive."""
        return self in (Phase.LAUNCHING, Phase.LOADING, Phase.WARMING, Phase.READY, Phase.DRAINING)


class RankPhase(StrEnum):
    """Where one rank stands, as its log and its health route tell; in this order."""

    ABSENT = "absent"
    STARTING = "starting"
    RENDEZVOUS = "rendezvous"
    WEIGHTS = "weights"
    KV = "kv"
    GRAPHS = "graphs"
    SERVING = "serving"

    @property
    def order(self) -> int:
        """Position in a start."""
        return list(RankPhase).index(self)


class Cause(StrEnum):
    """Why the pair went down: the label of the restart counter."""

    RANK_EXIT = "rank_exit"
    LEASE_LOST = "lease_lost"
    HOST_RESET = "host_reset"
    AGENT_RESTART = "agent_restart"
    DIGEST = "digest"
    DEADLINE = "deadline"
    TRANSPORT = "transport"
    PROBE = "probe"
    HANG = "hang"
    REFUSED = "refused"
    STALE_RANK = "stale_rank"
    MEMORY = "memory"
    PREFLIGHT = "preflight"
    STATE = "state"
    STUCK = "stuck"
    UNREACHABLE = "unreachable"
    START_LIMIT = "start_limit"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Reason:
    """One sentence for a person, with the cause as a fixed word and the node if it is one node's doing."""

    cause: Cause
    text: str
    node: str | None = None


@dataclass(frozen=True)
class Report:
    """What one node says of itself in answer to a beat.

    Attributes:
        term: the newest coordinator's term that this node has obeyed.
        epoch: the epoch of the beat that this answers; an older one counts as old news.
        generation: the newest generation that this node launched (0: none yet).
        alive: a process of some rank of this node exists, also one that is being ended.
        digest: of the cluster file, package versions, plug-in and weights revision on this node.
        memory_back: memory available is what the next launch needs.
        blockers: findings that forbid a start (preflight), one sentence each.
        refusal: why this node did not follow the last order, if it did not.
        fault: what this node's watcher saw (a socket transport, a foreign kill), if anything.
    """

    node: str
    agent: str
    boot_id: str
    term: int
    epoch: int
    generation: int
    alive: bool
    digest: str
    memory_back: bool
    rank_phase: RankPhase = RankPhase.ABSENT
    exit_status: int | None = None
    blockers: tuple[str, ...] = ()
    refusal: str | None = None
    fault: Reason | None = None
    exit_text: str = ""  # the first error of the ended rank's log
    parts: tuple[tuple[str, str], ...] = ()  # what the digest is made of, by name


class OrderKind(StrEnum):
    """What an operator may ask for."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    DRAIN = "drain"


@dataclass(frozen=True)
class Order:
    """An operator's order."""

    kind: OrderKind


@dataclass(frozen=True)
class Probed:
    """The acceptance probe of a generation ended."""

    generation: int
    ok: bool
    text: str = ""


@dataclass(frozen=True)
class Judged:
    """The liveness rule called a ready generation hung."""

    generation: int
    text: str


@dataclass(frozen=True)
class Drained:
    """No request runs or waits any more."""

    generation: int


@dataclass(frozen=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True)
class Unsaved:
    """`Persist` failed (a full or read-only disk): no node was told of the new generation."""

    text: str


Event = Report | Order | Probed | Judged | Drained | Tick | Unsaved


@dataclass(frozen=True)
class Persist:
    """Write generation and term to disk before any node is told of them."""

    generation: int
    term: int


@dataclass(frozen=True)
class Probe:
    """Run the acceptance probe against this generation and answer with `Probed`."""

    generation: int


@dataclass(frozen=True)
class Drain:
    """Watch this generation until it is idle and answer with `Drained`."""

    generation: int


@dataclass(frozen=True)
class DumpStacks:
    """Save the stacks of every rank's processes: a deadline passed."""

    generation: int
    why: str


@dataclass(frozen=True)
class Announce:
    """The phase changed (for the log, the service manager and the history)."""

    phase: Phase
    generation: int
    reason: Reason | None


Action = Persist | Probe | Drain | DumpStacks | Announce


@dataclass(frozen=True)
class Beat:
    """What the coordinator tells a node, again and again: the wanted state, never a step.

    Attributes:
        term: rises with each start of the coordinator; a higher one means that the earlier one is gone.
        seq: rises with each beat of one term.
        epoch: rises with each change of the pair's phase; the report carries it back.
        floor: generations up to this one are over and must never start again.
        desired: the generation that this node should run, or none.
        digest: what the node's own digest must be before it launches.
        lease_s: how long the node may go on without a further beat.
        grace_s: SIGTERM to SIGKILL if this beat ends the node's rank.
    """

    term: int
    seq: int
    epoch: int
    floor: int
    desired: int | None
    digest: str
    lease_s: float
    grace_s: float = 20.0
    phase: Phase = Phase.DOWN
    text: str = ""

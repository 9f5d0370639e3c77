"""The pair as one unit of failure: a state machine without I/O.

`Pair` is the coordinator's side (one per cluster), `Follower` each node's side, `Liveness` the rule that
tells a busy engine from a hung one. All take events with a time and give actions back.
"""

from sparkloom.pair.follower import End, Follower, Spawn
from sparkloom.pair.limits import Limits
from sparkloom.pair.liveness import Answer, Liveness, Sample, Verdict
from sparkloom.pair.machine import Pair
from sparkloom.pair.model import (
    Action,
    Announce,
    Beat,
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
    Tick,
    Unsaved,
)

__all__ = [
    "Action",
    "Announce",
    "Answer",
    "Beat",
    "Cause",
    "Drain",
    "Drained",
    "DumpStacks",
    "End",
    "Event",
    "Follower",
    "Judged",
    "Limits",
    "Liveness",
    "Order",
    "OrderKind",
    "Pair",
    "Persist",
    "Phase",
    "Probe",
    "Probed",
    "RankPhase",
    "Reason",
    "Report",
    "Sample",
    "Spawn",
    "Tick",
    "Unsaved",
    "Verdict",
]

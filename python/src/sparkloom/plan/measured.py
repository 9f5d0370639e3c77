"""A plan beside what the ranks' logs say, so that estimates can be replaced by measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkloom.logs.phases import RankLog
from sparkloom.plan.needs import KV_ITEM
from sparkloom.plan.planner import Plan

GIB = 1 << 30
WEIGHTS = frozenset(
    {
        "routed experts",
        "attention",
        "dense layers",
        "embedding and head",
        "vision tower",
        "drafter",
        "beyond the geometry",
        "weights",
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One planned number and the measured one."""

    node: str
    what: str
    planned_bytes: int
    measured_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def rows(plan: Plan, logs: Mapping[str, RankLog]) -> list[Row]:
    """What both the plan and a rank's log say, node by node."""
    found = []
    for node in plan.nodes:
        log = logs.get(node.name)
        if log is None:
            continue
        planned = {item.what: item.bytes for item in node.items}
        pairs = (
            ("weights", sum(planned.get(what, 0) for what in WEIGHTS), log.weights_gib),
            ("CUDA graphs", planned.get("CUDA graphs", 0), log.graph_gib),
            (KV_ITEM, planned.get(KV_ITEM, 0), log.kv_gib),
        )
        found += [
            Row(node.name, what, size, round(gib * GIB)) for what, size, gib in pairs if gib is not None
        ]
    return found


def smallest(logs: Mapping[str, RankLog]) -> tuple[str, int] | None:
    """Node and bytes of the smallest KV pool that a rank reports: it binds, though only the head sums up.

    None when no log has the figure.
    """
    known = {name: log.kv_gib for name, log in logs.items() if log.kv_gib is not None}
    if not known:
        return None
    name = min(known, key=lambda each: known[each])
    return name, round(known[name] * GIB)


def as_dict(plan: Plan, logs: Mapping[str, RankLog]) -> dict[str, Any]:
    """The key `measured` of `sparkloom plan --format json`."""
    binding = smallest(logs)
    return {
        "rows": [row.as_dict() for row in rows(plan, logs)],
        "smallest_kv": None if binding is None else {"node": binding[0], "bytes": binding[1]},
    }


def lines(plan: Plan, logs: Mapping[str, RankLog]) -> list[str]:
    """The comparison for people."""
    text = [
        f"measured  {row.node}: {row.what} {row.measured_bytes / GIB:.2f} GiB, "
        f"planned {row.planned_bytes / GIB:.2f}"
        for row in rows(plan, logs)
    ]
    if binding := smallest(logs):
        text.append(f"measured  the KV pool of {binding[0]} binds: {binding[1] / GIB:.2f} GiB")
    return text

"""Beats and reports as messages of the channel."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from sparkloom.pair import Beat, Cause, Phase, RankPhase, Reason, Report


def report_to_json(report: Report) -> dict[str, Any]:
    """A report as a message."""
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


def beat_from_json(value: dict[str, Any]) -> Beat:
    """A beat from a message."""
    return Beat(**{**value, "phase": Phase(value["phase"])})

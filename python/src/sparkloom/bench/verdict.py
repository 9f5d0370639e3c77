"""Judge a receipt: against reference bands, and whether it may be published at all. Pure functions."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

Row = dict[str, Any]


def load_bands() -> list[Row]:
    """The reference bands that ship with the package."""
    text = resources.files("sparkloom.bench").joinpath("bands.json").read_text()
    bands: list[Row] = json.loads(text)
    return bands


def lookup(results: Row, path: str) -> float | None:
    """A number in nested results by dotted path; None where any step is missing."""
    node: Any = results
    for step in path.split("."):
        if not isinstance(node, dict) or step not in node:
            return None
        node = node[step]
    return float(node) if isinstance(node, int | float) else None


def applies(band: Row, receipt: Row) -> bool:
    """A band judges only the model and hardware that it was published for."""
    gpus = " ".join(g.get("name", "") for g in receipt["host"].get("gpus", []))
    return (
        str(band["model"]).lower() in str(receipt["server"]["model"]).lower()
        and str(band["gpu"]).lower() in gpus.lower()
    )


def judge(receipt: Row, bands: list[Row]) -> list[Row]:
    """One verdict for each band whose metric was measured.

    Returns:
        rows with `metric, value, low, high, verdict` (below | within | above | not comparable),
        `source` and `date`.
    """
    out = []
    for band in bands:
        value = lookup(receipt["results"], band["metric"])
        if value is None:
            continue
        if not applies(band, receipt):
            word = "not comparable"
        elif value < band["low"]:
            word = "below"
        elif value > band["high"]:
            word = "above"
        else:
            word = "within"
        keep = {k: band[k] for k in ("metric", "low", "high", "unit", "source", "date")}
        out.append({**keep, "value": value, "verdict": word})
    return out


def obstacles(receipt: Row) -> list[str]:
    """Why this receipt must not be published; empty when it may."""
    out = [f"node held down: {reason}" for reason in receipt["watch"]["clamped"]]
    if not receipt["settings"]["full"]:
        out.append("short run: the protocol asks for at least 10 runs of 400 tokens")
    for name, case in receipt["results"].get("prefill", {}).items():
        if case["zero_hits"] is False:
            out.append(f"prefill {name}: part of the prompt came from the prefix cache, so it was not cold")
        elif case["zero_hits"] is None:
            out.append(f"prefill {name}: no proof of zero cache hits (the server exports no counter)")
    for name, case in receipt["results"].get("decode", {}).items():
        noise = case.get("a_a")
        if noise is not None and noise > 0.05:
            out.append(f"decode {name}: A/A noise {noise:.1%} is above 5 %: the node was not quiet")
    if receipt.get("agent_silent"):
        out.append("the agent's page never answered: memory, clocks and power of the nodes are unknown")
    if receipt["busy"]:
        out.append("the server served other requests during the run")
    return out

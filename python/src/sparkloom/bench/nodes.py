"""What the head's agent says of every node while a benchmark runs: memory, clock, power, temperature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from sparkloom.bench.host import CLAMP_MHZ, CLAMP_WATTS


@dataclass
class Node:
    """Extremes of one node: bytes, MHz, watts, degrees Celsius; empty where the agent does not say."""

    least_available: int | None = None
    mhz: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    celsius: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The node's part of the receipt."""

        def ends(values: list[float]) -> list[float] | None:
            return [min(values), max(values)] if values else None

        return {
            "min_mem_available_bytes": self.least_available,
            "sm_mhz": ends(self.mhz),
            "watts": ends(self.watts),
            "celsius": ends(self.celsius),
        }


class Nodes:
    """Collects status documents of an agent (`/status.json` of its page)."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.clamps: set[str] = set()
        self.documents = 0

    def take(self, status: dict[str, Any]) -> None:
        """Take one document; parts that are missing are passed over."""
        self.documents += 1
        loaded = bool((status.get("engine") or {}).get("running"))
        for row in status.get("nodes") or []:
            host = (row.get("facts") or {}).get("host") or {}
            gpu = host.get("gpu") or {}
            node = self.nodes.setdefault(str(row["name"]), Node())
            free = host.get("mem_available")
            if free:
                node.least_available = min(free, node.least_available or free)
            for values, key in (
                (node.mhz, "clock_mhz"),
                (node.watts, "power_w"),
                (node.celsius, "temperature_c"),
            ):
                if isinstance(gpu.get(key), int | float):
                    values.append(float(gpu[key]))
            if loaded and 0 < float(gpu.get("clock_mhz") or 0) < CLAMP_MHZ:
                self.clamps.add(f"{row['name']} runs at {gpu['clock_mhz']:.0f} MHz under load")
            if loaded and 0 < float(gpu.get("power_w") or 0) < CLAMP_WATTS:
                self.clamps.add(f"{row['name']} draws {gpu['power_w']:.0f} W under load: take off AC power")

    def as_dict(self) -> dict[str, Any]:
        """All nodes, by name."""
        return {name: node.as_dict() for name, node in self.nodes.items()}


def ask(url: str) -> dict[str, Any] | None:
    """One status document from the page at `url`, or None."""
    try:
        reply = httpx.get(url.rstrip("/") + "/status.json", timeout=3.0)
        value = reply.json() if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return value if isinstance(value, dict) else None

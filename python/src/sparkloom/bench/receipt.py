"""Run the chosen families and put everything that a reader needs to trust them into one receipt."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

from sparkloom import __version__
from sparkloom.bench import counters, host, nodes, protocol, verdict
from sparkloom.bench.client import Server
from sparkloom.bench.protocol import Say, Settings

SCHEMA = "sparkloom-bench-1"


async def measure(
    server: Server, families: list[str], settings: Settings, say: Say, agent: str | None = None
) -> dict[str, Any]:
    """Measure and return the receipt (JSON-ready).

    The receipt holds: schema, time, server, host facts, settings, results by family, what the host
    watch saw here and on the pair's nodes, whether other requests ran, verdicts against the bands, and
    obstacles to publishing.

    Args:
        agent: address of the status page of the head's agent, for memory, clocks and power of every node.
    """
    started = datetime.datetime.now(datetime.UTC)
    before = await protocol.read(server)
    results: dict[str, Any] = {}
    pair = nodes.Nodes()

    def look() -> None:
        if agent is not None and (status := nodes.ask(agent)) is not None:
            pair.take(status)

    with host.Watch(nodes=look) as watch:
        for name in families:
            results[name] = await protocol.FAMILIES[name](server, settings, say)
    after = await protocol.read(server)
    grown = delta(before, after, "vllm:generation_tokens_total")
    receipt: dict[str, Any] = {
        "schema": SCHEMA,
        "sparkloom": __version__,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.datetime.now(datetime.UTC) - started).total_seconds(), 1),
        "server": {"model": await server.model(), "version": await server.version()},
        "host": host.facts(),
        "settings": {**asdict(settings), "full": settings.full},
        "results": results,
        "watch": {**watch.as_dict(), "clamped": sorted(watch.clamps | pair.clamps), "nodes": pair.as_dict()},
        "busy": counters.running(after) > 0 or (grown is not None and grown > server.generated),
        "agent_silent": agent is not None and pair.documents == 0,
        "counters": {
            "preemptions": delta(before, after, "vllm:num_preemptions_total"),
            "generation_tokens": grown,
            "own_generation_tokens": server.generated,
        },
    }
    receipt["verdicts"] = verdict.judge(receipt, verdict.load_bands())
    receipt["obstacles"] = verdict.obstacles(receipt)
    return receipt


def delta(before: counters.Series, after: counters.Series, name: str) -> float | None:
    """Growth of a counter; None where it is not exported."""
    a = counters.total(after, name)
    return None if a is None else a - (counters.total(before, name) or 0.0)

"""Run the chosen families and put everything that a reader needs to trust them into one receipt."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

from sparkloom import __version__
from sparkloom.bench import counters, host, protocol, verdict
from sparkloom.bench.client import Server
from sparkloom.bench.protocol import Say, Settings

SCHEMA = "sparkloom-bench-1"


async def measure(server: Server, families: list[str], settings: Settings, say: Say) -> dict[str, Any]:
    """Measure and return the receipt (JSON-ready).

    The receipt holds: schema, time, server, host facts, settings, results by family, what the host
    watch saw, whether other requests ran, verdicts against the bands, and obstacles to publishing.
    """
    started = datetime.datetime.now(datetime.UTC)
    before = await protocol.read(server)
    results: dict[str, Any] = {}
    with host.Watch() as watch:
        for name in families:
            results[name] = await protocol.FAMILIES[name](server, settings, say)
    after = await protocol.read(server)
    receipt: dict[str, Any] = {
        "schema": SCHEMA,
        "sparkloom": __version__,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.datetime.now(datetime.UTC) - started).total_seconds(), 1),
        "server": {"model": await server.model(), "version": await server.version()},
        "host": host.facts(),
        "settings": {**asdict(settings), "full": settings.full},
        "results": results,
        "watch": watch.as_dict(),
        "busy": counters.running(after) > 0,
        "counters": {
            "preemptions": delta(before, after, "vllm:num_preemptions_total"),
            "generation_tokens": delta(before, after, "vllm:generation_tokens_total"),
        },
    }
    receipt["verdicts"] = verdict.judge(receipt, verdict.load_bands())
    receipt["obstacles"] = verdict.obstacles(receipt)
    return receipt


def delta(before: counters.Series, after: counters.Series, name: str) -> float | None:
    """Growth of a counter; None where it is not exported."""
    a = counters.total(after, name)
    return None if a is None else a - (counters.total(before, name) or 0.0)

"""The status document: what `sparkloom status`, the page and the metrics show. One form for all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkloom.agent.coordinator import Coordinator

VERSION = 1


def build_view(co: Coordinator) -> dict[str, Any]:
    """The whole status as plain JSON data."""
    pair, now = co.pair, time.monotonic()
    reason = pair.reason
    nodes = []
    for index, node in enumerate(co.settings.nodes):
        report, facts = pair.reports.get(node.name), co.facts.get(node.name, {})
        seen = pair.seen.get(node.name)
        age = None if seen is None else round(now - seen, 1)
        nodes.append(
            {
                "name": node.name,
                "role": "head" if index == 0 else "worker",
                "address": node.address,
                "reachable": age is not None and age < co.limits.lease_s,
                "age_s": age,
                "problem": co.problems.get(node.name, ""),
                "alive": bool(report and report.alive),
                "generation": report.generation if report else 0,
                "rank_phase": str(report.rank_phase) if report else "absent",
                "memory_back": bool(report and report.memory_back),
                "blockers": list(report.blockers) if report else [],
                "digest": report.digest[:12] if report else "",
                "boot_id": report.boot_id if report else "",
                "facts": facts,
            }
        )
    return {
        "version": VERSION,
        "cluster": co.settings.cluster,
        "model": co.settings.served_name,
        "api": co.settings.api_url,
        "phase": str(pair.phase),
        "ready": str(pair.phase) == "ready",
        "wanted": "up" if pair.wanted else "down",
        "generation": pair.generation,
        "moment": [pair.term, pair.epoch],  # rises with each change; an order's answer names one too
        "since_s": round(now - pair.since, 1),
        "stage": str(pair.stage) if str(pair.phase) == "loading" else None,
        "reason": None
        if reason is None
        else {"cause": str(reason.cause), "node": reason.node, "text": reason.text},
        "holds": [
            {"cause": str(h.cause), "node": h.node, "text": h.text}
            for h in (pair.holds(now) if str(pair.phase) in ("gate", "failed") else [])
        ],
        "next_start_s": max(0.0, round(pair.wait_until - now, 1)) if str(pair.phase) == "cooling" else None,
        "restarts": {str(cause): count for cause, count in pair.restarts.items()},
        "failures": len(pair.failures),
        "nodes": nodes,
        "engine": _engine(co),
        "probe": [r.as_dict() for r in co.probe_results],
        "history": list(co.history)[-60:],
    }


def _engine(co: Coordinator) -> dict[str, Any] | None:
    engine = co.engine
    if engine is None:
        return None
    drafts = co.acceptance()
    kv = [f.get("rank", {}).get("kv_tokens") for f in co.facts.values()]
    gib = [f.get("rank", {}).get("kv_gib") for f in co.facts.values()]
    tokens = [k for k in kv if k]
    return {
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_usage": engine.kv_usage,
        "prompt_tokens": engine.prompt_tokens,
        "generation_tokens": engine.generation_tokens,
        "preemptions": engine.preemptions,
        "acceptance": list(drafts.rates) if drafts and drafts.drafts else [],
        "acceptance_health": str(drafts.health) if drafts else "",
        "drafts": drafts.drafts if drafts else 0,
        "prefix_hit_rate": engine.prefix_hits / engine.prefix_queries if engine.prefix_queries else None,
        "prefix_hits": engine.prefix_hits,
        "prefix_queries": engine.prefix_queries,
        # The smaller rank binds; the log's token figure is concurrency times context, not one conversation.
        "kv_tokens": min(tokens) if tokens else None,
        "cached_conversation_tokens": co.cached_tokens,
        "kv_gib": min((g for g in gib if g), default=None),
        "progress_age_s": round(time.monotonic() - co.liveness.progress_at, 1) if co.liveness else None,
    }

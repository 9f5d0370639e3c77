"""The agent's own `/metrics`: the pair, both ranks and both hosts (prometheus_client)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sparkloom.pair import Phase

Family = GaugeMetricFamily | CounterMetricFamily


class StatusCollector(Collector):
    """Turns the status document into metric families."""

    def __init__(self, view: Callable[[], dict[str, Any]]) -> None:
        self.view = view

    def collect(self) -> Iterable[Family]:
        """All families of one scrape."""
        view = self.view()
        if not view:
            return []
        return [*_pair(view), *_nodes(view), *_engine(view)]


def text(view: Callable[[], dict[str, Any]]) -> bytes:
    """The exposition text of a status document."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(view))
    return bytes(generate_latest(registry))


def _pair(view: dict[str, Any]) -> list[Family]:
    phase = GaugeMetricFamily("sparkloom_phase", "1 for the pair's present phase.", labels=["phase"])
    for name in Phase:
        phase.add_metric([name.value], float(view["phase"] == name.value))
    restarts = CounterMetricFamily(
        "sparkloom_restarts", "Times that the pair was taken down, by cause.", labels=["cause"]
    )
    for cause, count in view["restarts"].items():
        restarts.add_metric([cause], count)
    ready = GaugeMetricFamily("sparkloom_ready", "1 while checked answers stand behind the service.")
    ready.add_metric([], float(view["ready"]))
    generation = GaugeMetricFamily("sparkloom_generation", "Number of the present or last launch.")
    generation.add_metric([], view["generation"])
    since = GaugeMetricFamily("sparkloom_phase_seconds", "Time in the present phase.")
    since.add_metric([], view["since_s"])
    return [phase, ready, generation, since, restarts]


def _nodes(view: dict[str, Any]) -> list[Family]:
    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"sparkloom_{name}", text, labels=["node", *labels])

    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"sparkloom_{name}", text, labels=["node", *labels])

    alive = gauge("rank_alive", "1 while a process of the node's rank lives.")
    reachable = gauge("node_reachable", "1 while the node's agent answers.")
    rank_memory = gauge("rank_memory_bytes", "Proportional set size of the rank's processes.")
    total = gauge("host_memory_bytes", "MemTotal.")
    available = gauge("host_memory_available_bytes", "MemAvailable.")
    free = gauge("host_memory_free_bytes", "MemFree, which CUDA reports as free on unified memory.")
    swap = gauge("host_swap_used_bytes", "Swap in use.")
    swapped_in = counter("host_swapped_in_pages", "Pages read back from swap.")
    swapped_out = counter("host_swapped_out_pages", "Pages written to swap.")
    roce = counter("roce_errors", "RoCE error counters of the port.", "device", "port", "counter")
    power = gauge("gpu_power_watts", "Power draw.")
    clock = gauge("gpu_clock_mhz", "SM clock.")
    heat = gauge("gpu_temperature_celsius", "Temperature.")
    kv = gauge("rank_kv_bytes", "KV memory that the rank's log names; the smaller one binds.")
    for node in view["nodes"]:
        name, host = node["name"], node["facts"].get("host") or {}
        rank = node["facts"].get("rank") or {}
        alive.add_metric([name], float(node["alive"]))
        reachable.add_metric([name], float(node["reachable"]))
        rank_memory.add_metric([name], rank.get("memory") or 0)
        for family, key in (
            (total, "mem_total"),
            (available, "mem_available"),
            (free, "mem_free"),
            (swap, "swap_used"),
            (swapped_in, "swapped_in_pages"),
            (swapped_out, "swapped_out_pages"),
        ):
            family.add_metric([name], host.get(key, 0))
        for key, value in (host.get("roce") or {}).items():
            roce.add_metric([name, *key.split("/", 2)], value)
        for family, key in ((power, "power_w"), (clock, "clock_mhz"), (heat, "temperature_c")):
            if (found := (host.get("gpu") or {}).get(key)) is not None:
                family.add_metric([name], found)
        if rank.get("kv_gib"):
            kv.add_metric([name], rank["kv_gib"] * 2**30)
    return [
        *(alive, reachable, rank_memory, total, available, free, swap),
        *(swapped_in, swapped_out, roce, power, clock, heat, kv),
    ]


def _engine(view: dict[str, Any]) -> list[Family]:
    engine = view.get("engine")
    if not engine:
        return []
    rate = GaugeMetricFamily(
        "sparkloom_draft_acceptance", "Accepted share of drafts since ready.", labels=["position"]
    )
    for position, value in enumerate(engine["acceptance"]):
        rate.add_metric([str(position)], value)
    hits = CounterMetricFamily("sparkloom_prefix_hit_tokens", "Prompt tokens found in the prefix cache.")
    hits.add_metric([], engine["prefix_hits"])
    asked = CounterMetricFamily(
        "sparkloom_prefix_query_tokens", "Prompt tokens looked up in the prefix cache."
    )
    asked.add_metric([], engine["prefix_queries"])
    running = GaugeMetricFamily("sparkloom_requests_running", "Requests in the engine.")
    running.add_metric([], engine["running"])
    waiting = GaugeMetricFamily("sparkloom_requests_waiting", "Requests that wait.")
    waiting.add_metric([], engine["waiting"])
    progress = GaugeMetricFamily("sparkloom_progress_age_seconds", "Time since the engine last moved.")
    progress.add_metric([], engine["progress_age_s"] or 0.0)
    return [rate, hits, asked, running, waiting, progress]

"""Read vLLM's log line by line into phases and facts. Pure: lines in, a `RankLog` out.

The texts are those of vLLM 0.32 and 0.33 and of NCCL at NCCL_DEBUG=INFO. A line that means nothing here is
skipped; `shm_broadcast`'s 60 s line is information and not a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from sparkloom.pair import RankPhase


class Transport(StrEnum):
    """How NCCL talks to the other node."""

    IB = "ib"
    SOCKET = "socket"
    GLOO = "gloo"


# The phase that begins when the line appears.
_PHASES: tuple[tuple[re.Pattern[str], RankPhase], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"world_size=\d+.*distributed_init_method=", RankPhase.RENDEZVOUS),
        (
            r"rank \d+ in world size \d+ is assigned|Starting to load model|Loading model from",
            RankPhase.WEIGHTS,
        ),
        (r"Model loading took ", RankPhase.KV),
        (r"(GPU|CPU) KV cache size: |# (GPU|CPU) blocks: |Maximum concurrency for ", RankPhase.GRAPHS),
        (r"Application startup complete", RankPhase.SERVING),
    )
)
_RANK = re.compile(r"rank (\d+) in world size (\d+)")
_LOADED = re.compile(r"Model loading took ([\d.]+) GiB memory and ([\d.]+) seconds")
_KV_FREE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_KV_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_GRAPHS = re.compile(r"Graph capturing finished in ([\d.]+) secs, took ([\d.]+) GiB")
_INIT = re.compile(r"init engine .* took ([\d.]+) (?:seconds|s)\b")
_NCCL = re.compile(r"NCCL version ([\d.]+)|vLLM is using nccl==([\d.]+)")
_NET = re.compile(r"NET/(IB|Socket)\b.*\bUsing\b|Using network (IB|Socket|\w+)|via NET/(IB|Socket)")
_GLOO = re.compile(r"backend=gloo")
_ERROR = re.compile(r"\b((?:\w+\.)*\w*(?:Error|Exception)): (\S.*)")
_HINT = re.compile(r"^(?:\([^)]*\) )?(?:WARNING|INFO|DEBUG) ")


@dataclass
class RankLog:
    """What is known of one rank from its log."""

    phase: RankPhase = RankPhase.STARTING
    rank: int | None = None
    transport: Transport | None = None
    nccl: str | None = None
    weights_gib: float | None = None
    load_seconds: float | None = None
    kv_gib: float | None = None
    kv_tokens: int | None = None
    max_length: int | None = None
    concurrency: float | None = None
    graph_seconds: float | None = None
    graph_gib: float | None = None
    init_seconds: float | None = None
    errors: list[tuple[float, str]] = field(default_factory=list)  # when read, what; the last 100
    lines: int = 0
    history: list[tuple[RankPhase, float]] = field(default_factory=list)

    def feed(self, line: str, now: float = 0.0) -> None:
        """Take one line that was read at `now`."""
        self.lines += 1
        for pattern, phase in _PHASES:
            if phase.order > self.phase.order and pattern.search(line):
                self.phase = phase
                self.history.append((phase, now))
        if "NCCL" in line or "nccl" in line:
            self._nccl(line)
        if _GLOO.search(line) and self.transport is None:
            self.transport = Transport.GLOO
        if found := _RANK.search(line):
            self.rank = int(found[1])
        if found := _LOADED.search(line):
            self.weights_gib, self.load_seconds = float(found[1]), float(found[2])
        if found := _KV_FREE.search(line):
            self.kv_gib = float(found[1])
        if found := _KV_SIZE.search(line):
            self.kv_tokens = int(found[1].replace(",", ""))
        if found := _CONCURRENCY.search(line):
            self.max_length, self.concurrency = int(found[1].replace(",", "")), float(found[2])
        if found := _GRAPHS.search(line):
            self.graph_seconds, self.graph_gib = float(found[1]), float(found[2])
        if found := _INIT.search(line):
            self.init_seconds = float(found[1])
        if _HINT.search(line):
            return  # a warning that names an error to explain itself, such as that of few file handles
        if ("Error: " in line or "Exception: " in line) and (found := _ERROR.search(line)):
            self.errors = [*self.errors[-99:], (now, found[0][:300])]

    def first_error(self, since: float = 0.0) -> str:
        """The first error that was read at `since` or later: what follows it is mostly its consequence."""
        return next((text for at, text in self.errors if at >= since), "")

    def _nccl(self, line: str) -> None:
        if found := _NCCL.search(line):
            self.nccl = (found[1] or found[2]).rstrip(".")
        if found := _NET.search(line):
            name = found[1] or found[2] or found[3]
            if name == "Socket":
                self.transport = Transport.SOCKET
            elif name == "IB" and self.transport is not Transport.SOCKET:
                self.transport = Transport.IB


def of_text(text: str) -> RankLog:
    """A whole log at once."""
    log = RankLog()
    for line in text.splitlines():
        log.feed(line)
    return log


def smallest_kv(*logs: RankLog) -> float | None:
    """The smaller KV memory of all ranks in GiB: it is what binds, though only the head prints a sum."""
    return min((log.kv_gib for log in logs if log.kv_gib is not None), default=None)

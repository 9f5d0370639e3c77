"""The protocol: idle gate, warm-up, n runs, counters around each run. One function for each family of cases.

Every function returns plain rows; statistics and text are made from rows, so a receipt can be re-read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkloom.bench import counters, workloads
from sparkloom.bench.client import Sample, Server
from sparkloom.bench.stats import a_a, summarise
from sparkloom.errors import Exit, SparkloomError

Say = Callable[[str], None]
Row = dict[str, Any]


@dataclass
class Settings:
    """How much to run. Defaults are the published protocol; smaller values mark the receipt as short."""

    runs: int = 10
    tokens: int = 400
    lengths: tuple[int, ...] = (8192, 32768, 131072, 262144)
    streams: tuple[int, ...] = (1, 2, 4, 8)
    workloads: tuple[str, ...] = ("structured", "prose", "code", "japanese")
    text: str = "both"  # salted | real | both
    seed: int = 1
    idle_seconds: float = 120.0
    extra: dict[str, Any] = field(
        default_factory=lambda: {"chat_template_kwargs": {"enable_thinking": False}}
    )

    @property
    def full(self) -> bool:
        """Whether this is at least the published protocol."""
        return self.runs >= 10 and self.tokens >= 400


async def idle_gate(server: Server, seconds: float) -> None:
    """Wait until the server runs and queues nothing.

    Raises:
        SparkloomError: it is still busy after `seconds`: a measurement would be of two loads at once.
    """
    end = time.monotonic() + seconds
    while True:
        text = await server.metrics()
        busy = counters.running(counters.parse(text)) if text else 0.0
        if busy == 0:
            return
        if time.monotonic() > end:
            raise SparkloomError(
                f"the server still serves {busy:.0f} other requests after {seconds:.0f} s",
                file=server.root,
                mend="drain it first (sparkloom drain), or wait until nobody uses it",
                code=Exit.CHECK,
            )
        await asyncio.sleep(min(0.5, seconds))


async def read(server: Server) -> counters.Series:
    """Counters now; empty where the server exports none."""
    text = await server.metrics()
    return counters.parse(text) if text else {}


def user(text: str) -> list[dict[str, Any]]:
    """A conversation of one user message."""
    return [{"role": "user", "content": text}]


async def one(server: Server, messages: list[dict[str, Any]], tokens: int, s: Settings) -> tuple[Sample, Row]:
    """One timed request with the counters around it."""
    before = await read(server)
    sample = await server.chat(messages, max_tokens=tokens, extra=s.extra)
    after = await read(server)
    row: Row = sample.as_dict()
    acc = counters.acceptance(before, after)
    if acc is not None:
        row["acceptance"] = {
            "rate": round(acc.rate, 4),
            "tokens_per_step": round(acc.tokens_per_step, 4),
            "per_position": [round(x, 4) for x in acc.per_position],
            "steps": acc.drafts,
        }
        row["ms_per_step"] = round(1000 * (sample.total - sample.ttft) / acc.drafts, 4)
    elif sample.completion_tokens > 1:
        row["ms_per_step"] = round(1000 * (sample.total - sample.ttft) / (sample.completion_tokens - 1), 4)
    hits = counters.prefix_hits(before, after)
    row["prefix_hit_tokens"] = hits if hits is not None else row["cached_tokens"]
    return sample, row


async def decode(server: Server, s: Settings, say: Say) -> Row:
    """Tokens per second of one stream, for each workload, n runs; TTFT apart."""
    out: Row = {}
    for name in s.workloads:
        await idle_gate(server, s.idle_seconds)
        await server.chat(user(workloads.DECODE[name]), max_tokens=32, extra=s.extra)
        rows = []
        for i in range(s.runs):
            _, row = await one(server, user(workloads.DECODE[name]), s.tokens, s)
            rows.append(row)
            say(f"decode {name} {i + 1}/{s.runs}: {row['decode_tps'] or 0:.2f} tok/s")
        rates = [r["decode_tps"] for r in rows if r["decode_tps"] is not None]
        out[name] = {
            "runs": rows,
            "decode_tps": as_dict(summarise(rates)),
            "ttft_s": as_dict(summarise([r["ttft_s"] for r in rows])),
            "a_a": a_a(rates),
        }
    return out


async def words_per_token(server: Server, s: Settings, make: Callable[[int, int], str]) -> float:
    """Calibrate: words of this text for one prompt token of this server."""
    n = 400
    sample = await server.chat(user(make(n, s.seed ^ 0x5EED)), max_tokens=1, extra=s.extra)
    return n / max(1, sample.prompt_tokens)


async def prefill(server: Server, s: Settings, say: Say) -> Row:
    """Cold prefill: unique text at each length, and the proof that nothing came from the cache."""
    makers = {"salted": workloads.prefill_prompt, "real": workloads.real_text}
    out: Row = {}
    for kind, make in makers.items():
        if s.text not in ("both", kind):
            continue
        ratio = await words_per_token(server, s, make)
        for length in s.lengths:
            await idle_gate(server, s.idle_seconds)
            rows = []
            for i in range(max(1, min(s.runs, 3))):
                salt = hash_salt(s.seed, kind, length, i)
                _, row = await one(server, user(make(int(length * ratio), salt)), 1, s)
                row["prefill_tps"] = round(row["prompt_tokens"] / row["ttft_s"], 3) if row["ttft_s"] else None
                rows.append(row)
                say(f"prefill {kind} {length}: {row['prefill_tps'] or 0:.0f} tok/s, {row['ttft_s']:.2f} s")
            hits = [r["prefix_hit_tokens"] for r in rows]
            out[f"{kind}-{length}"] = {
                "runs": rows,
                "prefill_tps": as_dict(summarise([r["prefill_tps"] for r in rows if r["prefill_tps"]])),
                "ttft_s": as_dict(summarise([r["ttft_s"] for r in rows])),
                "zero_hits": None if None in hits else all(h == 0 for h in hits),
            }
    return out


async def prefix(server: Server, s: Settings, say: Say) -> Row:
    """Re-use of a prompt: cold, warm, edits at 10/50/90 %, a branch, two conversations in turn."""
    length = min(s.lengths)
    ratio = await words_per_token(server, s, workloads.prefill_prompt)
    base = workloads.prefill_prompt(int(length * ratio), hash_salt(s.seed, "prefix", length, 0))
    other = workloads.prefill_prompt(int(length * ratio), hash_salt(s.seed, "prefix", length, 1))
    follow = [
        *user(base),
        {"role": "assistant", "content": "The river."},
        *user("And the second most often?"),
    ]
    branch = [
        *user(base),
        {"role": "assistant", "content": "The bridge."},
        *user("Name a colour in the text."),
    ]
    steps: list[tuple[str, list[dict[str, Any]]]] = [
        ("cold", user(base)),
        ("warm", user(base)),
        ("follow-up", follow),
        ("branch", branch),
        *((f"edit-{int(p * 100)}", user(workloads.edited(base, p, s.seed))) for p in (0.1, 0.5, 0.9)),
        ("interleaved-b-cold", user(other)),
        ("interleaved-a", user(base)),
        ("interleaved-b", user(other)),
    ]
    await idle_gate(server, s.idle_seconds)
    out: Row = {}
    for name, messages in steps:
        _, row = await one(server, messages, 8, s)
        hits = row["prefix_hit_tokens"]
        row["hit_share"] = None if hits is None else round(hits / row["prompt_tokens"], 4)
        out[name] = row
        say(f"prefix {name}: {row['ttft_s']:.3f} s to the first token, hit share {row['hit_share']}")
    return out


async def concurrency(server: Server, s: Settings, say: Say) -> Row:
    """Aggregate by wall clock (not the sum of stream rates) for 1, 2, 4, 8 streams of prose."""
    out: Row = {}
    for streams in s.streams:
        await idle_gate(server, s.idle_seconds)
        start = time.perf_counter()
        samples = await asyncio.gather(
            *(
                server.chat(
                    user(workloads.DECODE["prose"] + f" Variant {i}."), max_tokens=s.tokens, extra=s.extra
                )
                for i in range(streams)
            )
        )
        wall = time.perf_counter() - start
        tokens = sum(x.completion_tokens for x in samples)
        out[str(streams)] = {
            "wall_s": round(wall, 4),
            "aggregate_tps": round(tokens / wall, 4),
            "per_stream_tps": as_dict(summarise([x.decode_tps for x in samples if x.decode_tps])),
            "ttft_s": as_dict(summarise([x.ttft for x in samples])),
        }
        say(f"concurrency {streams}: {tokens / wall:.2f} tok/s together")
    return out


async def agent(server: Server, s: Settings, say: Say) -> Row:
    """A replayed session: each turn resends the whole history, as agents do."""
    await idle_gate(server, s.idle_seconds)
    system = workloads.filler(1200, hash_salt(s.seed, "agent", 0, 0))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    rows = []
    for turn in workloads.AGENT_TURNS:
        messages.append({"role": "user", "content": turn})
        sample, row = await one(server, messages, min(s.tokens, 200), s)
        messages.append({"role": "assistant", "content": sample.text or "."})
        rows.append(row)
        say(f"agent turn {len(rows)}: {row['ttft_s']:.3f} s to the first token")
    return {
        "turns": rows,
        "session_s": round(sum(r["total_s"] for r in rows), 4),
        "ttft_s": as_dict(summarise([r["ttft_s"] for r in rows])),
    }


def hash_salt(*parts: object) -> int:
    """A salt that depends on every part and on the run's seed, stable over processes."""
    import hashlib

    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


def as_dict(summary: Any) -> Row | None:
    """A summary as a dict, None where nothing was measured."""
    return None if summary is None else summary.as_dict()


FAMILIES = {
    "decode": decode,
    "prefill": prefill,
    "prefix": prefix,
    "concurrency": concurrency,
    "agent": agent,
}

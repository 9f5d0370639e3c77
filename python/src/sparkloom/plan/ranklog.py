"""The KV figure in each rank's log. Only the smallest counts: the pool is as large as the smallest rank's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_AVAILABLE = re.compile(r"Available KV cache memory: ([0-9]+(?:\.[0-9]+)?) GiB")
_TOKENS = re.compile(r"GPU KV cache size: ([0-9][0-9,]*) tokens")


@dataclass(frozen=True, slots=True)
class RankFigure:
    """What one rank says about its cache; None where its log is silent."""

    available_bytes: int | None
    tokens: int | None


def figure(log: str) -> RankFigure:
    """The last figures in one rank's log (a restarted rank writes them again)."""
    plain = _ANSI.sub("", log)
    available = _AVAILABLE.findall(plain)
    tokens = _TOKENS.findall(plain)
    return RankFigure(
        round(float(available[-1]) * 2**30) if available else None,
        int(tokens[-1].replace(",", "")) if tokens else None,
    )


def smallest(figures: Mapping[str, RankFigure]) -> tuple[str, RankFigure] | None:
    """The rank that binds, by available bytes, then by tokens; None when no rank says anything."""
    known = {name: f for name, f in figures.items() if f.available_bytes is not None or f.tokens is not None}
    if not known:
        return None
    by_bytes = {name: f for name, f in known.items() if f.available_bytes is not None}
    if by_bytes:
        name = min(by_bytes, key=lambda n: by_bytes[n].available_bytes or 0)
    else:
        name = min(known, key=lambda n: known[n].tokens or 0)
    return name, known[name]

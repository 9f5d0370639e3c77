"""Fake ranks and what tests ask about them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from sparkloom.ranks import Deadlines, Pair, Rank

FAKE = Path(__file__).with_name("fake_rank.py")
QUICK = Deadlines(term=0.4, again=0.3)


def private(tmp_path: Path) -> Path:
    base = tmp_path / "runs"
    base.mkdir(exist_ok=True)
    return base


def fake(pair: Pair, tmp_path: Path, *behaviours: str, name: str = "head", node: int = 0) -> Rank:
    return pair.start(
        name,
        node,
        [sys.executable, "-u", str(FAKE), *behaviours],
        log=tmp_path / f"{name}.log",
        env={"FAKE_PORT": str(18000 + os.getpid() % 10000)},
        deadlines=QUICK,
    )


def pids(log: Path, seconds: float = 15.0) -> list[int]:
    """The pids that a fake rank prints once it is ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = log.read_text() if log.exists() else ""
        for line in text.splitlines():
            if line.startswith("ready "):
                return [int(word) for word in line.split()[1:]]
        time.sleep(0.02)
    raise AssertionError(f"not ready: {text}")


def gone(*which: int, seconds: float = 5.0) -> bool:
    """Whether all of these processes end within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(running(pid) for pid in which):
            return True
        time.sleep(0.02)
    return False


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

"""Two real agents with real vLLM ranks on the CPU, broken in every way that real ranks can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.testing import parrot
from sparkloom.testing.chaos import CASES, World, run_cases

pytest.importorskip("vllm", reason="vLLM is not installed: no real rank was broken")

WANTED = (
    "kill-worker",
    "kill-head",
    "kill-both",
    "hang-worker",
    "cable",
    "stale-rank",
    "coordinator",
    "wrong-key",
    "digest",
    "crash-loop",
    "slow-memory",
)


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_real_ranks_come_back_by_themselves(world: Callable[..., World], tmp_path: Path) -> None:
    """One pair for all cases: each ends with right answers again, and the next one begins there.

    A case passes when the right cause was named, a new generation serves, no process of an older one is left
    and nobody got a wrong answer. At the end an ordered stop leaves nothing at all.
    """
    w = world(model=parrot.make(tmp_path / "parrot"), ready_s=600.0)
    cases = [c for c in CASES if c.name in WANTED and (w.network.mode == "netns" or not c.netns)]
    outcomes = run_cases(w, cases)
    bad = [f"{o.case}: {o.verdict}" for o in outcomes if o.verdict != "ok"]
    assert not bad, "\n".join(bad) + "\n" + w.tails(40)
    assert len(outcomes) == len(cases)
    assert all(o.wrong == 0 and o.orphans == 0 and o.right > 0 for o in outcomes)
    assert len(cases) == len(WANTED) - (w.network.mode != "netns")

    w.order("stop")
    view = w.until("a pair that is down", lambda v: v.get("phase") in ("down", "failed"), 90.0)
    assert view["phase"] == "down", view["reason"]
    assert not w.rank_processes()
    assert all(n["memory_back"] and not n["alive"] for n in view["nodes"])
    assert not list(w.folder.glob("*/state/rank-boot.json")), "a rank is still on record"

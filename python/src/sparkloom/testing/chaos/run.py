"""Run cases in one world, measure each, and judge: back by itself, no orphan, no wrong answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.testing.chaos.cases import Case
from sparkloom.testing.chaos.customer import Customer
from sparkloom.testing.chaos.world import NAMES, World


@dataclass(frozen=True)
class Outcome:
    """What one case gave. Seconds count from the break."""

    case: str
    what: str
    verdict: str  # ok, or what is wrong
    cause: str = ""
    text: str = ""
    detected_s: float | None = None
    back_s: float | None = None
    lost: int = 0
    wrong: int = 0
    right: int = 0
    orphans: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run_cases(
    world: World, cases: Sequence[Case], *, progress: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """Run the cases one after the other; each begins with a ready pair and a customer."""
    outcomes = []
    world.ready()
    with world.asked() as customer:
        for case in cases:
            outcome = _run(world, case, customer)
            outcomes.append(outcome)
            if progress:
                progress(outcome)
            if outcome.back_s is None and case.down:
                break  # nothing can be measured in a world that did not come back
    return outcomes


def _run(world: World, case: Case, customer: Customer) -> Outcome:
    before = world.ready()
    world.order("start")  # forgets the failures of earlier cases: each case has the start limit to itself
    first = customer.first_right
    while first(time.monotonic() - 1.0) is None:  # the customer is being served
        time.sleep(0.1)
    time.sleep(0.3)
    begin, wall, generation = time.monotonic(), time.time(), before["generation"]
    try:
        case.act(world)
        view = world.ready(after=generation if case.down else 0)
        served = _served(customer, time.monotonic() - 0.5 if case.down else begin, world.options.ready_s)
    except SparkloomError as error:
        return Outcome(case.name, case.what, f"{error.summary} {error.detail}".strip())
    ended = [h for h in view["history"] if h["at"] >= wall and h["phase"] in ("stopping", "gate")]
    seen = ended[0] if ended else {}
    counts = customer.since(begin)
    orphans = _orphans(world, view["generation"])
    problems = []
    if case.down and view["generation"] <= generation:
        problems.append("no new generation")
    if not case.down and (view["generation"] != generation or ended):
        problems.append("the pair went down although it was well")
    if case.causes and seen.get("cause") not in case.causes:
        problems.append(f"the cause was {seen.get('cause')}: {seen.get('text')}")
    if counts["wrong"] and case.name != "wrong-answer":
        problems.append(f"{counts['wrong']} wrong answers")
    if orphans:
        problems.append(f"{orphans} orphans")
    return Outcome(
        case=case.name,
        what=case.what,
        verdict="; ".join(problems) or "ok",
        cause=seen.get("cause") or "",
        text=seen.get("text") or "",
        detected_s=round(seen["at"] - wall, 2) if seen else None,
        back_s=round(served - begin, 2) if case.down else None,
        lost=counts["lost"],
        wrong=counts["wrong"],
        right=counts["right"],
        orphans=orphans,
    )


def _served(customer: Customer, begin: float, seconds: float) -> float:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if (at := customer.first_right(begin)) is not None:
            return at
        time.sleep(0.05)
    raise SparkloomError(f"no right answer within {seconds:g} s of a ready pair")


def _orphans(world: World, generation: int) -> int:
    """Processes of ranks that are not of the present generation."""
    wanted = f"SPARKLOOM_GENERATION={generation}".encode()
    count = 0
    for name in NAMES:
        for p in world.rank_processes(name):
            try:
                count += wanted not in Path(f"/proc/{p.pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
    return count


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = [
        "| case | what is broken | named cause | seen after | served again after | lost requests | verdict |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for o in outcomes:
        seen = "-" if o.detected_s is None else f"{o.detected_s:.1f} s"
        back = "-" if o.back_s is None else f"{o.back_s:.1f} s"
        cause = o.cause or "-"
        rows.append(f"| {o.case} | {o.what} | {cause} | {seen} | {back} | {o.lost} | {o.verdict} |")
    return "\n".join(rows)

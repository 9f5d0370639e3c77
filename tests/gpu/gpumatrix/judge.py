"""Comparison rules of the matrix. Pure: they get records, start nothing.

A record is what one row's process wrote: `generations` (per prompt: tokens, logprobs, top), `facts` and
`numbers`. A check is `{"rule": NAME, ...}`; `judge` returns for each `{check, ok, seen}`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

TIE = 0.5  # nats: a first differing token this near to the reference's own is a rounding difference
MEDIAN = 0.03  # nats: median difference of the chosen tokens' log-probabilities

Record = Mapping[str, Any]


def agreement(reference: Sequence[Any], candidate: Sequence[Any]) -> dict[str, Any]:
    """Compare generations prompt by prompt, up to each prompt's first differing token.

    Returns:
        prompts, prompts_equal, tokens (of the reference), tokens_equal (before the first difference),
        identical (tokens and every log-probability), gaps (nats between the reference's token and the
        candidate's at each first difference; None when it is not among the reference's likeliest), flips
        (how many of them are no near ties),
        median and p95 of |log-probability difference| over the shared positions.
    """
    equal = total = same = 0
    gaps: list[float | None] = []
    differences: list[float] = []
    for ref, cand in zip(reference, candidate, strict=True):
        total += len(ref["tokens"])
        at = first_difference(ref["tokens"], cand["tokens"])
        equal += at
        if at == len(ref["tokens"]) == len(cand["tokens"]):
            same += 1
        elif at < min(len(ref["tokens"]), len(cand["tokens"])):
            top = {int(k): v for k, v in ref["top"][at].items()}
            other = top.get(cand["tokens"][at])
            gaps.append(None if other is None else round(ref["logprobs"][at] - other, 4))
        differences += [abs(a - b) for a, b in zip(ref["logprobs"][:at], cand["logprobs"][:at], strict=True)]
    flips = sum(gap is None or gap > TIE for gap in gaps)
    return {
        "prompts": len(reference),
        "prompts_equal": same,
        "tokens": total,
        "tokens_equal": equal,
        "identical": same == len(reference) and not any(differences),
        "gaps": gaps,
        "flips": flips,
        "median": round(statistics.median(differences), 5) if differences else None,
        "p95": round(quantile(differences, 0.95), 5) if differences else None,
    }


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of equal leading tokens."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


def quantile(values: Sequence[float], share: float) -> float:
    """The value at `share` of the sorted list (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def lookup(record: Record, path: str) -> Any:
    """A value of a record by dotted path; None when it is not there."""
    found: Any = record
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def holds(seen: Any, op: str, wanted: Any) -> bool:
    """Whether `seen OP wanted`; a value that is missing holds nothing."""
    if seen is None:
        return False
    if op == "in":
        return bool(wanted in seen)
    if op == "within":
        return all(one in wanted for one in seen)
    if op == "each>":
        return bool(seen) and all(value > wanted for value in seen)
    return bool(
        {
            "==": lambda: seen == wanted,
            "!=": lambda: seen != wanted,
            "<": lambda: seen < wanted,
            "<=": lambda: seen <= wanted,
            ">": lambda: seen > wanted,
            ">=": lambda: seen >= wanted,
        }[op]()
    )


def check_one(check: Mapping[str, Any], record: Record, records: Mapping[str, Record]) -> tuple[bool, Any]:
    """One check: (whether it holds, what was seen)."""
    rule = check["rule"]
    if rule == "value":
        seen = lookup(record, check["path"])
        return holds(seen, check["op"], check["to"]), seen
    if rule == "own":  # a number of this row against another of its numbers
        mine, theirs = lookup(record, check["path"]), lookup(record, check["than"])
        if mine is None or theirs is None:
            return False, {check["path"]: mine, check["than"]: theirs}
        wanted = theirs * check.get("times", 1) + check.get("plus", 0)
        return holds(mine, check["op"], wanted), {check["path"]: mine, check["than"]: theirs}
    other = records.get(check["of"])
    if not other or other.get("error"):
        return False, f"row {check['of']} has no result"
    if rule == "compare":  # a number of this row against another row's, times a factor
        mine, theirs = lookup(record, check["path"]), lookup(other, check["path"])
        if mine is None or theirs is None:
            return False, {"this": mine, check["of"]: theirs}
        wanted = theirs * check.get("times", 1) + check.get("plus", 0)
        return holds(mine, check["op"], wanted), {"this": mine, check["of"]: theirs}
    if not record.get("generations") or not other.get("generations"):
        return False, "no generations"
    some = slice(*check.get("prompts", (None,)))
    pairs = list(zip(other["generations"][some], record["generations"][some], strict=False))
    if not pairs:
        return False, "no generations"
    seen = agreement([a for a, _ in pairs], [b for _, b in pairs])
    if rule == "identical":
        return seen["identical"], seen
    if rule == "tokens":
        return seen["prompts_equal"] == seen["prompts"], seen
    if rule == "near":
        median = seen["median"]
        few = seen["flips"] <= check.get("flips", 0)
        return few and median is not None and median <= check.get("median", MEDIAN), seen
    raise ValueError(f"no such rule: {rule}")


def judge(
    checks: Sequence[Mapping[str, Any]], record: Record, records: Mapping[str, Record]
) -> list[dict[str, Any]]:
    """All checks of a row. A row that ended with an error fails them all."""
    if record.get("error"):
        return [{"check": describe(c), "ok": False, "seen": "the row ended with an error"} for c in checks]
    found = []
    for check in checks:
        ok, seen = check_one(check, record, records)
        found.append({"check": describe(check), "ok": ok, "seen": seen})
    return found


def describe(check: Mapping[str, Any]) -> str:
    """A check in words."""
    rule = check["rule"]
    if rule == "value":
        return f"{check['path']} {check['op']} {check['to']}"
    factor = f" x {check['times']}" if "times" in check else ""
    factor += f" {check['plus']:+}" if "plus" in check else ""
    if rule == "own":
        return f"{check['path']} {check['op']} {check['than']}{factor}"
    if rule == "compare":
        return f"{check['path']} {check['op']} that of {check['of']}{factor}"
    which = {(0, 3): " (short prompts)", (3, 4): " (long prompt)"}.get(tuple(check.get("prompts", ())), "")
    words = {
        "identical": "tokens and log-probabilities equal those of",
        "tokens": "tokens equal those of",
        "near": "tokens equal those of, up to near ties"
        + (f" and {check['flips']} flip," if check.get("flips") else ","),
    }
    return f"{words[rule]} {check['of']}{which}"

"""Long answers that must hold together: counting, tables, a needle, and detectors of collapse. Pure rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sparkloom.bench.workloads import filler


@dataclass(frozen=True)
class Verdict:
    """Result of a rule: whether the answer holds, and what was seen."""

    ok: bool
    seen: str


@dataclass(frozen=True)
class Task:
    """One long-form task."""

    name: str
    prompt: str
    max_tokens: int
    judge: Callable[[str], Verdict]


def count_sequence(last: int) -> Callable[[str], Verdict]:
    """Rule: the numbers 1 to `last`, each once and in order."""

    def judge(text: str) -> Verdict:
        numbers = [int(n) for n in re.findall(r"\d+", text)]
        for i, n in enumerate(numbers[:last]):
            if n != i + 1:
                return Verdict(False, f"{i + 1} expected, {n} seen at place {i + 1}")
        if len(numbers) < last:
            return Verdict(False, f"ends at {numbers[-1] if numbers else 'nothing'} of {last}")
        return Verdict(True, f"1 to {last}")

    return judge


def table_of_squares(rows: int) -> Callable[[str], Verdict]:
    """Rule: a Markdown table whose rows are `n | n*n` for 1 to `rows`."""

    def judge(text: str) -> Verdict:
        found = {int(a): int(b) for a, b in re.findall(r"\|\s*(\d+)\s*\|\s*(\d+)\s*\|", text)}
        wrong = [n for n in range(1, rows + 1) if found.get(n) != n * n]
        if wrong:
            return Verdict(False, f"{len(wrong)} of {rows} rows are wrong or missing, the first: {wrong[0]}")
        return Verdict(True, f"{rows} rows")

    return judge


def contains(word: str) -> Callable[[str], Verdict]:
    """Rule: the answer names a word."""

    def judge(text: str) -> Verdict:
        return Verdict(word in text, text.strip()[:80])

    return judge


def repeated_character(text: str, limit: int = 32) -> str | None:
    """One character over and over (collapse), or None. Rules of tables and code stay below the limit or
    are made of the characters that such rules are drawn with."""
    for match in re.finditer(rf"(.)\1{{{limit - 1},}}", text, re.DOTALL):
        if match[1] not in "-=_*#~.+ \n|─═":
            return f"{match[1]!r} {len(match[0])} times"
    if re.search(r"([!?])\1{15,}", text):
        return "a run of exclamation or question marks"
    return None


def loop(text: str, least: int = 4) -> str | None:
    """The same block of words again and again at the end of a text, or None.

    A block of 3 to 60 words that ends the text at least `least` times in a row is a loop. Rows of a
    table that count upwards differ, so they are none.
    """
    words = text.split()
    for size in range(3, min(60, len(words) // least) + 1):
        block = words[-size:]
        times = 1
        while words[-size * (times + 1) : -size * times] == block:
            times += 1
        if times >= least:
            return f"{times} times: {' '.join(block)[:80]}"
    return None


def needle(depth: float, words: int, secret: str) -> str:
    """A long salted text with one sentence hidden at `depth` (0 to 1)."""
    text = filler(words, salt=int(depth * 1000) + words).split(". ")
    text.insert(int(len(text) * depth), f"The code of the harbour gate is {secret}")
    return ". ".join(text) + "\n\nWhat is the code of the harbour gate? Answer with the code alone."


def tasks(words: int = 6000) -> list[Task]:
    """The gate's tasks; `words` sizes the needle's haystack."""
    out = [
        Task(
            "count-1000",
            "Count from 1 to 1000, separated by single spaces, digits only, nothing else.",
            6000,
            count_sequence(1000),
        ),
        Task(
            "table-60",
            "Write a Markdown table with two columns, n and n squared, for n from 1 to 60. Only the table.",
            2000,
            table_of_squares(60),
        ),
    ]
    for depth in (0.1, 0.5, 0.9):
        secret = f"K{int(depth * 10)}-7731"
        out.append(Task(f"needle-{int(depth * 100)}", needle(depth, words, secret), 40, contains(secret)))
    return out


def judge(task: Task, text: str) -> Verdict:
    """The task's own rule, then the detectors of collapse, loops and broken characters."""
    if "\ufffd" in text:
        return Verdict(False, "a replacement character (U+FFFD)")
    if (found := repeated_character(text)) is not None:
        return Verdict(False, f"collapse: {found}")
    verdict = task.judge(text)
    if verdict.ok and (found := loop(text)) is not None:
        return Verdict(False, f"loop: {found}")
    return verdict

"""What a check found, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sparkloom.errors import Exit


class Verdict(StrEnum):
    """Outcome of one check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Result:
    """One check's outcome: what was expected, what was seen, what to do."""

    check: str
    level: Verdict
    expected: str
    seen: str
    seconds: float = 0.0
    mend: str = ""

    @property
    def summary(self) -> str:
        """One sentence for a log."""
        return f"{self.check}: expected {self.expected}, saw {self.seen}"

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `--format json`."""
        return {**asdict(self), "level": self.level.value, "summary": self.summary}


def exit_code(results: Sequence[Result], *, strict: bool = False) -> Exit:
    """0, 1 (warnings and `strict`) or 3 (a check failed)."""
    levels = {r.level for r in results}
    if Verdict.FAIL in levels or not results:
        return Exit.CHECK
    return Exit.WARN if strict and Verdict.WARN in levels else Exit.OK

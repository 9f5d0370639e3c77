"""Findings: what a check saw, how bad it is and what to do about it.

Every check of `fabric`, `preflight`, `weights` and `doctor` answers with a list of these. The worst
level decides the exit code: 0 all well, 1 only warnings and `--strict` was given, 3 something fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparkloom.errors import Exit, SparkloomError


class Level(StrEnum):
    """How bad a finding is, in rising order."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


_RANK = {Level.ok: 0, Level.warn: 1, Level.fail: 2}
_STYLE = {Level.ok: "green", Level.warn: "yellow", Level.fail: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check.

    Args:
        check: the check's stable name, for example `fabric.gid`.
        level: `ok`, `warn` or `fail`.
        summary: one sentence with the value that was seen.
        detail: further lines (a table, a list of files), shown as they are.
        mend: what to do about it; empty when nothing is wrong.
    """

    check: str
    level: Level
    summary: str
    detail: str = ""
    mend: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as the JSON object that `--format json` prints."""
        return {
            "check": self.check,
            "level": str(self.level),
            "summary": self.summary,
            "detail": self.detail,
            "mend": self.mend,
        }


def ok(check: str, summary: str, detail: str = "") -> Finding:
    """A check that is content."""
    return Finding(check, Level.ok, summary, detail)


def warn(check: str, summary: str, mend: str = "", detail: str = "") -> Finding:
    """A check that sees something that will hurt later, or could not see what it needs."""
    return Finding(check, Level.warn, summary, detail, mend)


def fail(check: str, summary: str, mend: str = "", detail: str = "") -> Finding:
    """A check that says: do not start."""
    return Finding(check, Level.fail, summary, detail, mend)


def from_error(check: str, error: SparkloomError) -> Finding:
    """A failing finding from an error that a check ran into."""
    places = [
        f"{name}: {value}"
        for name, value in (("file", error.file), ("field", error.field), ("value", error.value))
        if value is not None
    ]
    detail = "\n".join([*places, *([error.detail] if error.detail else [])])
    return Finding(check, Level.fail, error.summary, detail, error.mend)


def worst(findings: Iterable[Finding]) -> Level:
    """The highest level among `findings`; `ok` when there are none."""
    return max((f.level for f in findings), key=_RANK.__getitem__, default=Level.ok)


def exit_code(findings: Iterable[Finding], *, strict: bool = False) -> Exit:
    """0, 1 (warnings and `strict`) or 3 (a failure)."""
    level = worst(findings)
    if level is Level.fail:
        return Exit.CHECK
    return Exit.WARN if level is Level.warn and strict else Exit.OK


def report_dict(findings: Sequence[Finding], *, strict: bool = False) -> dict[str, Any]:
    """`{"verdict", "exit_code", "findings"}` for `--format json`; callers add their own keys."""
    return {
        "verdict": str(worst(findings)),
        "exit_code": int(exit_code(findings, strict=strict)),
        "findings": [f.as_dict() for f in findings],
    }


def print_text(findings: Sequence[Finding], *, title: str = "", total: bool = True) -> None:
    """Print findings for people: one line each; what is not well has its details and its mend below.

    Args:
        findings: in the order of the output.
        title: a line above them.
        total: end with the worst level and the counts.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    if title:
        console.print(f"[bold]{escape(title)}[/bold]")
    width = max((len(f.check) for f in findings), default=0)
    for finding in findings:
        style = _STYLE[finding.level]
        head = f"[{style}]{finding.level:<4}[/{style}] {escape(finding.check):<{width}}"
        console.print(f"{head}  {escape(finding.summary)}")
        for line in finding.detail.splitlines() if finding.level is not Level.ok else ():
            console.print(f"     {escape(line)}", style="dim")
        if finding.mend:
            console.print(f"     mend: {escape(finding.mend)}")
    if not total:
        return
    counts = {level: sum(f.level is level for f in findings) for level in Level}
    summary = ", ".join(f"{n} {level}" for level, n in counts.items() if n)
    level = worst(findings)
    console.print(f"[{_STYLE[level]}]{level}[/{_STYLE[level]}]: {summary or 'nothing to check'}")

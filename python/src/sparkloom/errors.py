"""The one error type that reaches a person, and the exit codes of every command.

A message says what is wrong (with file, field and value where there are any) and how to mend it.
The codes are part of the contract: `docs/cli.md` lists them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes of every `sparkloom` command."""

    OK = 0
    WARN = 1  # only warnings, and --strict was given
    USAGE = 2  # the command line itself is wrong
    CHECK = 3  # a check, plan, probe or verification says no
    INPUT = 4  # a file that a person or another program wrote is wrong
    RESOURCE = 5  # this machine lacks something: port, memory, disk, permission, program
    NETWORK = 6  # a server, mirror or index could not be reached or broke off
    RANK = 7  # a rank of the pair died, hung or answered wrongly
    INTERNAL = 70  # a fault of ours
    INTERRUPTED = 130


class SparkloomError(Exception):
    """A failure with everything that a person needs to mend it.

    Args:
        summary: what is wrong, one sentence without a full stop.
        mend: what to do about it, imperative.
        file, field, value: where the bad input stands, if input is at fault.
        code: exit code of the command.
        detail: further lines (a log's tail, a table), shown as they are.
    """

    def __init__(
        self,
        summary: str,
        *,
        mend: str = "",
        file: object = None,
        field: str | None = None,
        value: object = None,
        code: Exit = Exit.INPUT,
        detail: str = "",
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.mend = mend
        self.file = None if file is None else str(file)
        self.field = field
        self.value = value
        self.code = code
        self.detail = detail

    def as_dict(self) -> dict[str, Any]:
        """The error as the JSON object that `--format json` prints."""
        return {
            "error": {
                "summary": self.summary,
                "file": self.file,
                "field": self.field,
                "value": None if self.value is None else repr(self.value),
                "detail": self.detail or None,
                "mend": self.mend or None,
                "exit_code": int(self.code),
            }
        }

    def __str__(self) -> str:
        lines = [f"error: {self.summary}"]
        if self.file is not None:
            lines.append(f"  file: {self.file}")
        if self.field is not None:
            lines.append(f"  field: {self.field}")
        if self.value is not None:
            lines.append(f"  value: {self.value!r}")
        if self.detail:
            lines.extend("  | " + line for line in self.detail.rstrip().splitlines())
        if self.mend:
            lines.append(f"  mend: {self.mend}")
        return "\n".join(lines)

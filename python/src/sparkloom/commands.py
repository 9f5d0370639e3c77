"""Ask other programs without side effects: no inherited standard input, a deadline, no exception."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed and how it ended; `status` 127 means there is no such program."""

    status: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether the program ended with status 0."""
        return self.status == 0


MISSING, TIMED_OUT = 127, 124


def ask(argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Answer:
    """Run `argv`, never letting it read the caller's standard input (a remote shell would eat a script)."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )
    except FileNotFoundError:
        return Answer(MISSING, "", f"{argv[0]}: not installed")
    except subprocess.TimeoutExpired:
        return Answer(TIMED_OUT, "", f"{argv[0]}: no answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(126, "", f"{argv[0]}: {error.strerror or error}")
    return Answer(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


def capture_text(argv: Sequence[str], *, timeout_s: float = 10.0) -> str | None:
    """The program's output when it ends well, else `None`."""
    answer = ask(argv, timeout_s=timeout_s)
    return answer.out if answer.ok else None

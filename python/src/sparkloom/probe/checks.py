"""The checks as data: name, request, rule, deadline, and the sets that they belong to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkloom.errors import Exit, SparkloomError

Kind = Literal["health", "chat", "stream_equal", "tool", "long", "acceptance", "abort", "auth"]


class Check(BaseModel):
    """One check. `request` is the body that goes to `/v1/chat/completions`, without `model`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Kind
    sets: tuple[str, ...]
    deadline_s: float = Field(gt=0)
    why: str
    mend: str
    request: dict[str, Any] = Field(default_factory=dict)
    rule: dict[str, Any] = Field(default_factory=dict)
    words: int = 0
    attempts: int = Field(default=1, ge=1, le=5)


@cache
def load_checks() -> tuple[Check, ...]:
    """Every check that ships with the package."""
    text = resources.files("sparkloom.probe").joinpath("checks.json").read_text()
    return parse_checks(text, "checks.json")


def parse_checks(text: str, file: object) -> tuple[Check, ...]:
    """Checks from JSON text of the same form as `checks.json`."""
    try:
        rows = json.loads(text)["checks"]
        return tuple(Check.model_validate(row) for row in rows)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        raise SparkloomError(
            f"not a list of checks: {reason}", file=file, mend='write {"checks": [...]}; see docs/probe.md'
        ) from error


def pick(
    checks: Sequence[Check], *, chosen: str = "full", only: Sequence[str] = (), skip: Sequence[str] = ()
) -> list[Check]:
    """The checks of a set, or those named by `only`; unknown names are an error."""
    names = [c.name for c in checks]
    for name in (*only, *skip):
        if name not in names:
            raise SparkloomError(
                "no such check", value=name, mend="known: " + ", ".join(names), code=Exit.USAGE
            )
    sets = sorted({s for c in checks for s in c.sets})
    if chosen not in sets:
        raise SparkloomError(
            "no such set of checks", value=chosen, mend="known: " + ", ".join(sets), code=Exit.USAGE
        )
    return [c for c in checks if (c.name in only if only else chosen in c.sets) and c.name not in skip]

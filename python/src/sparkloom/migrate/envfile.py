"""Read an environment file as data; nothing in it is executed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkloom.errors import SparkloomError

_LINE = re.compile(r"^\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$")


@dataclass(frozen=True)
class Setting:
    """One assignment: name, value, line number, and whether a shell would have expanded something in it."""

    name: str
    value: str
    line: int
    expands: bool


def parse(text: str, file: str = ".env") -> dict[str, Setting]:
    """Parse assignments; the last one of a name wins, as in a shell.

    Raises:
        SparkloomError: a line that is neither empty, comment nor assignment, or an open quote.
    """
    out: dict[str, Setting] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise SparkloomError(
                f"line {number} is no assignment",
                file=file,
                value=line.strip()[:60].partition("=")[0],
                mend="write NAME=value, one a line",
            )
        value, quote = unquote(match["value"], file, number)
        expands = quote != "'" and ("$" in value or "`" in value)
        out[match["name"]] = Setting(match["name"], value, number, expands)
    return out


def unquote(raw: str, file: str, number: int) -> tuple[str, str]:
    """Value without quotes and trailing comment, and the quote that it had."""
    raw = raw.strip()
    if raw[:1] in ("'", '"'):
        end = raw.find(raw[0], 1)
        if end < 0:
            raise SparkloomError(
                f"line {number} has an open quote", file=file, mend="close the quote on the same line"
            )
        return raw[1:end], raw[0]
    return re.split(r"\s+#", raw, maxsplit=1)[0].strip(), ""

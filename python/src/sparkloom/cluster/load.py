"""Read a cluster file: one `Cluster`, or one error that lists everything wrong with the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkloom.cluster.checks import Problem, check
from sparkloom.cluster.owned import SECRET_NAME, SECRET_VALUE
from sparkloom.cluster.types import Cluster
from sparkloom.errors import Exit, SparkloomError

MAX_BYTES = 1 << 20


class ClusterError(SparkloomError):
    """A cluster file with problems.

    With one problem, `field`, `value` and `mend` are its own; with more, they are the first one's and
    `detail` lists all. `problems` has them as data.
    """

    def __init__(self, problems: Sequence[Problem], file: object) -> None:
        first = problems[0]
        many = len(problems) > 1
        super().__init__(
            f"{len(problems)} problems in the cluster file" if many else first.problem,
            file=file,
            field=first.field,
            value=first.value,
            mend=first.mend if not many else "mend every field named above",
            detail="\n".join(
                f"{p.field} = {json.dumps(p.value, default=repr)}: {p.problem}; {p.mend}" for p in problems
            )
            if many
            else "",
            code=Exit.INPUT,
        )
        self.problems = tuple(problems)

    def as_dict(self) -> dict[str, Any]:
        """The error with every problem as data."""
        document = super().as_dict()
        document["error"]["problems"] = [p.as_dict() for p in self.problems]
        return document


def load(path: str | Path) -> Cluster:
    """Read and check the cluster file at `path`.

    Raises:
        ClusterError: the content is wrong; all problems at once.
        SparkloomError: the file cannot be read or is not JSON.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise SparkloomError(
            f"cannot read the cluster file: {error.strerror}",
            file=path,
            mend="name an existing file; docs/examples/cluster.json is one to start from",
        ) from error
    if len(raw) > MAX_BYTES:
        raise SparkloomError(
            "too large for a cluster file",
            file=path,
            value=len(raw),
            mend=f"a cluster file has a few KiB; the limit is {MAX_BYTES} bytes",
        )
    return loads(raw, file=path)


def loads(raw: bytes | str, *, file: object = None) -> Cluster:
    """Parse and check the text of a cluster file; `file` names it in errors."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise SparkloomError(
            f"not UTF-8 text: byte {error.start} is wrong", file=file, mend="save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        raise SparkloomError(
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            file=file,
            value=_line(text, error.lineno),
            mend="correct that place (no comments, no trailing commas, double quotes)",
        ) from error
    except (RecursionError, ValueError) as error:
        # RecursionError: thousands of nested brackets; ValueError: a duplicate key, NaN, a huge number.
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SparkloomError(
            f"not a usable JSON document: {reason}", file=file, mend="correct the file"
        ) from error
    return parse(data, file=file)


def parse(data: Any, *, file: object = None) -> Cluster:
    """Check an already decoded JSON value."""
    if not isinstance(data, dict):
        raise SparkloomError(
            f"a JSON object is needed, not {_kind(data)}", file=file, mend='start the file with "{"'
        )
    data = {key: value for key, value in data.items() if key != "$schema"}
    try:
        with _without_plugins():
            cluster = Cluster.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise ClusterError([_problem(item) for item in error.errors()], file) from None
    if problems := check(cluster):
        raise ClusterError(problems, file)
    return cluster


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep pydantic from searching all installed packages for plug-ins: a fifth of the start-up time."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def json_path(location: Sequence[str | int]) -> str:
    """A pydantic location as a JSON path: `nodes[0].fabric.addresses[1]`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "$"


_MENDS = {
    "missing": "add it",
    "extra_forbidden": "remove it or correct its spelling; `sparkloom schema` lists every field",
    "int_type": "write a whole number without quotes",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number",
    "float_type": "write a number without quotes",
    "bool_type": "write true or false without quotes",
    "string_type": "write text in double quotes",
    "list_type": "write a list in square brackets",
    "dict_type": "write an object in braces",
    "model_type": "write an object in braces",
    "model_attributes_type": "write an object in braces",
}


def _problem(item: ErrorDetails) -> Problem:
    location = tuple(part for part in item["loc"] if part != "[key]")
    kind, message = item["type"], item["msg"]
    context = item.get("ctx", {})
    mend = _MENDS.get(kind, "")
    if kind == "missing":
        message = "this field is needed"
    elif kind == "extra_forbidden":
        message = "unknown field"
        if close := _close(location):
            mend = f"did you mean {close!r}? otherwise remove it"
    elif kind in ("enum", "literal_error"):
        message, mend = "not one of the allowed values", f"use one of {context.get('expected')}"
    elif kind == "string_pattern_mismatch":
        mend = f"write text that matches {context.get('pattern')}{_pattern_hint(location)}"
    elif kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        mend = "stay within the limit"
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
    value = None if kind == "missing" else item["input"]
    if any(SECRET_NAME.search(str(part)) for part in location) or SECRET_VALUE.search(str(value)):
        value = "<hidden>"
    message = message[0].lower() + message[1:] if message else kind
    return Problem(json_path(location), value, message, mend or "see `sparkloom schema`")


def _pattern_hint(location: tuple[str | int, ...]) -> str:
    if location and location[-1] == "revision":
        return " (the 40 digits of a commit; branch names move)"
    if location and location[-1] == "image":
        return " (by digest; tags move)"
    return ""


def _close(location: tuple[str | int, ...]) -> str | None:
    """The known field whose name is nearest to an unknown one."""
    import difflib

    from sparkloom.cluster.schema import fields_at

    *parent, name = location
    found = difflib.get_close_matches(str(name), fields_at(parent), n=1)
    return found[0] if found else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip()[:120] if number <= len(lines) else ""


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")

"""Compare two request bodies under a chat template. Pure: the caller renders and tokenises."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """One token of a rendered prompt: its id and the half-open span of characters it covers."""

    id: int
    start: int
    end: int


@dataclass(frozen=True)
class Difference:
    """Where two prompts part and what that means.

    Attributes:
        token: index of the first differing token; None when one prompt is the other's beginning.
        shared_tokens: tokens before it.
        tokens: lengths of both prompts in tokens.
        reusable_tokens: shared tokens rounded down to whole cache blocks.
        lost_tokens: tokens of the second prompt that must be computed again.
        character: index of the first differing character of the rendered text.
        context_a, context_b: text around it.
        cause: one of the known causes, or "content".
        where: JSON path of the first differing field of the bodies.
        explanation: a sentence for a person.
        mend: what to change.
    """

    token: int | None
    shared_tokens: int
    tokens: tuple[int, int]
    reusable_tokens: int
    lost_tokens: int
    character: int
    context_a: str
    context_b: str
    cause: str
    where: str
    explanation: str
    mend: str

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


_HEX = r"[0-9a-fA-F]"
IDENTIFIER = re.compile(
    rf"{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}"  # UUID
    rf"|\b(?:session|sess|conv|request|req|trace|msg|call|chatcmpl|user)[-_:]\w{{6,}}"
    rf"|\b{_HEX}{{16,}}\b",
    re.IGNORECASE,
)
CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d(?::\d\d)?|\b1[6-9]\d{8}\b")
TASKS = re.compile(r"\[[ xX]\]|\btodos?\b|\btask list\b|\bin_progress\b|\bpending\b", re.IGNORECASE)


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common beginning of two sequences."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def first_path(a: Any, b: Any, path: str = "$") -> str | None:
    """JSON path of the first place where two values differ, in the order of the first one; None if equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if key not in a or key not in b:
                return f"{path}.{key}"
            if (found := first_path(a[key], b[key], f"{path}.{key}")) is not None:
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            if (found := first_path(x, y, f"{path}[{i}]")) is not None:
                return found
        return None if len(a) == len(b) else f"{path}[{min(len(a), len(b))}]"
    return None if a == b else path


def effort(body: Body) -> Any:
    """The reasoning effort or thinking switch that a body asks for."""
    kwargs = body.get("chat_template_kwargs") or {}
    return (body.get("reasoning_effort"), kwargs.get("reasoning_effort"), kwargs.get("enable_thinking"))


def parts(a: Body, b: Body) -> list[tuple[str | int, ...]]:
    """Paths of the parts of two bodies that differ and may reach the prompt: messages one by one."""
    found: list[tuple[str | int, ...]] = [
        (key,)
        for key in dict.fromkeys([*a, *b])
        if key not in ("messages", "chat_template_kwargs") and a.get(key) != b.get(key)
    ]
    old, new = a.get("chat_template_kwargs") or {}, b.get("chat_template_kwargs") or {}
    found += [("chat_template_kwargs", k) for k in dict.fromkeys([*old, *new]) if old.get(k) != new.get(k)]
    messages = a.get("messages") or [], b.get("messages") or []
    for i in range(max(map(len, messages))):
        if messages[0][i : i + 1] != messages[1][i : i + 1]:
            found.append(("messages", i))
    return found


def taken(a: Body, b: Body, part: tuple[str | int, ...]) -> Body:
    """`b` with one part as `a` has it (absent where it has none)."""
    out = copy.deepcopy(b)
    if part[0] == "messages":
        i = int(part[1])
        out["messages"][i : i + 1] = copy.deepcopy(a["messages"][i : i + 1])
        return out
    old, new = a, out
    for key in part[:-1]:
        old, new = old.get(str(key)) or {}, new.setdefault(str(key), {})
    if part[-1] in old:
        new[str(part[-1])] = copy.deepcopy(old[str(part[-1])])
    else:
        new.pop(str(part[-1]), None)
    return out


def responsible(render: Callable[[Body], str], a: Body, b: Body) -> str | None:
    """JSON path of the part whose difference stands first in the rendered prompts; None if none does.

    Each differing part of `b` is put back to what `a` says, alone; the one that moves the first difference
    farthest is it. Fields that the template does not render can so never be blamed.
    """
    text = render(a)
    at = first_difference(text, render(b))
    best: tuple[int, tuple[str | int, ...]] | None = None
    for part in parts(a, b):
        try:
            moved = first_difference(text, render(taken(a, b, part)))
        except Exception:  # a template may refuse the mixture, for example roles out of turn
            continue
        if moved > at and (best is None or moved > best[0]):
            best = moved, part
    if best is None:
        return None
    path, old, new = "$", a, b
    for key in best[1]:
        path += f"[{key}]" if isinstance(key, int) else f".{key}"
        old, new = inside(old, key), inside(new, key)
    return first_path(old, new, path) or path


def inside(value: Any, key: str | int) -> Any:
    """An element of a list or object; None where there is none."""
    if isinstance(value, list):
        return value[int(key)] if int(key) < len(value) else None
    return value.get(key) if isinstance(value, dict) else None


def around(text: str, at: int, reach: int = 40) -> str:
    """Text near a place, one line."""
    return text[max(0, at - reach) : at + reach].replace("\n", "\\n")


def word_at(text: str, at: int) -> str:
    """The run of non-space characters that covers a place."""
    start = max(text.rfind(c, 0, at) for c in " \n\t") + 1
    ends = [e for e in (text.find(c, at) for c in " \n\t") if e >= 0]
    return text[start : min(ends) if ends else len(text)]


CAUSES: dict[str, tuple[str, str]] = {
    "same": ("the two requests render to the same prompt", "nothing: the whole prefix can be re-used"),
    "append": (
        "the second prompt goes on where the first ends",
        "nothing: the cache covers all of the first prompt's whole blocks",
    ),
    "effort": (
        "the reasoning effort or thinking switch differs; its word stands at the very start of the prompt",
        "keep one effort for a whole conversation",
    ),
    "tools": (
        "the tool list differs (content or order); tools are rendered before the first message",
        "send the same tools in the same order on every turn",
    ),
    "identifier": (
        "an identifier that changes with each request stands in the prompt",
        "move ids out of the prompt, or to the end of the last message",
    ),
    "clock": (
        "a date or time stands in the prompt",
        "round it to the day, or put it into the last message",
    ),
    "task-list": (
        "a task list that changes on each turn stands before the conversation",
        "put the changing list into the last message instead of the system prompt",
    ),
    "history": (
        "an earlier message was edited, dropped or summarised",
        "only append to the history; compact it rarely and all at once",
    ),
    "system": ("the system prompt differs", "keep the system prompt byte-equal within a conversation"),
    "content": ("the text differs", "send equal text first, what changes last"),
}


def cause_of(a: Body, b: Body, text_a: str, text_b: str, at: int, where: str, *, sure: bool = False) -> str:
    """Name the cause of a difference at character `at`; with `sure`, `where` is known to be the place."""
    if where.startswith(("$.reasoning_effort", "$.chat_template_kwargs")) if sure else effort(a) != effort(b):
        return "effort"
    if where.startswith("$.tools") if sure else json.dumps(a.get("tools")) != json.dumps(b.get("tools")):
        return "tools"
    words = (word_at(text_a, at), word_at(text_b, at))
    if all(IDENTIFIER.search(w) for w in words):
        return "identifier"
    if all(CLOCK.search(w) for w in words):
        return "clock"
    lines = [t[t.rfind("\n", 0, at) + 1 : (t.find("\n", at) + 1 or len(t) + 1) - 1] for t in (text_a, text_b)]
    if any(TASKS.search(line) for line in lines):
        return "task-list"
    match = re.match(r"\$\.messages\[(\d+)\]", where)
    if match is None:
        return "content"
    index = int(match[1])
    messages = a.get("messages", []), b.get("messages", [])
    if index < len(messages[0]) and messages[0][index].get("role") == "system":
        return "system"
    return "history" if index < min(map(len, messages)) - 1 else "content"


def compare(
    a: Body,
    b: Body,
    text_a: str,
    text_b: str,
    tokens_a: Sequence[Piece],
    tokens_b: Sequence[Piece],
    block: int,
    place: str | None = None,
) -> Difference:
    """Compare two rendered requests.

    Args:
        a, b: request bodies (OpenAI chat completions), first and second in time.
        text_a, text_b: their rendered prompts.
        tokens_a, tokens_b: their tokens.
        block: tokens of a cache block; only whole blocks are re-used.
        place: from `responsible`; without it the first differing field of the bodies is taken.
    """
    shared = first_difference([t.id for t in tokens_a], [t.id for t in tokens_b])
    at = first_difference(text_a, text_b)
    where = place or first_path(a, b) or "$"
    if shared == len(tokens_a) == len(tokens_b):
        cause = "same"
    elif shared == len(tokens_a):
        cause = "append"
    else:
        cause = cause_of(a, b, text_a, text_b, at, where, sure=place is not None)
    reusable = shared // block * block
    explanation, mend = CAUSES[cause]
    return Difference(
        token=None if cause in ("same", "append") else shared,
        shared_tokens=shared,
        tokens=(len(tokens_a), len(tokens_b)),
        reusable_tokens=reusable,
        lost_tokens=len(tokens_b) - reusable,
        character=at,
        context_a=around(text_a, at),
        context_b=around(text_b, at),
        cause=cause,
        where=where,
        explanation=explanation,
        mend=mend,
    )

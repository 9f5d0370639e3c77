"""Rules over a reply: pure, each answer says what was expected and what was seen."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """A chat reply, whole or put together from a stream."""

    content: str = ""
    reasoning: str = ""
    tools: list[dict[str, str]] = field(default_factory=list)  # name, arguments (JSON text)
    finish: str | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None


Complaint = tuple[str, str]  # expected, seen


def judge(rule: dict[str, Any], reply: Reply) -> Complaint | None:
    """The first rule that the reply breaks, or None."""
    text = reply.content
    if rule.get("not_empty") and not text.strip():
        return "some text", "an empty answer"
    for word in rule.get("absent", []):
        if word in text or word in reply.reasoning:
            where = "answer" if word in text else "reasoning"
            return f"no {word!r} in the reply", f"it in the {where}: {_short(text or reply.reasoning)}"
    if rule.get("no_collapse") and (found := collapse(text)):
        return "varied text", found
    if (pattern := rule.get("matches")) and not re.search(pattern, text):
        if found := collapse(text):
            return f"an answer that matches {pattern}", found
        return f"an answer that matches {pattern}", _short(text)
    for word in rule.get("contains", []):
        if word not in text:
            return f"{word!r} in the answer", _short(text)
    if rule.get("reasoning") and not reply.reasoning.strip():
        return "text in the field `reasoning`", "none there"
    if (allowed := rule.get("finish")) and reply.finish not in allowed:
        return f"finish_reason {' or '.join(allowed)}", repr(reply.finish)
    if name := rule.get("tool"):
        return _tool(name, rule.get("arguments", {}), reply)
    return None


def _tool(name: str, wanted: dict[str, str], reply: Reply) -> Complaint | None:
    if [t["name"] for t in reply.tools] != [name]:
        names = ", ".join(t["name"] for t in reply.tools) or f"none; the answer was {_short(reply.content)}"
        return f"one call of {name}", names
    text = reply.tools[0]["arguments"]
    try:
        arguments = json.loads(text)
    except ValueError:
        return "arguments in JSON", _short(text)
    if not isinstance(arguments, dict):
        return "arguments as a JSON object", _short(text)
    for key, pattern in wanted.items():
        if not re.search(pattern, str(arguments.get(key, ""))):
            return f"argument {key} that matches {pattern}", _short(text)
    if reply.finish not in ("tool_calls", None):
        return "finish_reason tool_calls", repr(reply.finish)
    return None


def equal(names: list[str], whole: Reply, streamed: Reply) -> Complaint | None:
    """The first field in which a streamed reply differs from the whole one."""
    for name in names:
        left, right = getattr(whole, name), getattr(streamed, name)
        if left != right:
            return f"the stream's {name} to equal {_short(repr(left))}", _short(repr(right))
    return None


def collapse(text: str) -> str | None:
    """Say so when a text is one character, or one short piece, again and again."""
    dense = "".join(text.split())
    if len(dense) < 24:
        return None
    char, count = Counter(dense).most_common(1)[0]
    if count >= 0.8 * len(dense):
        return f"one character again and again: {char * 8}... ({count} of {len(dense)})"
    # A piece of up to 16 characters that fills the end of the text; legitimate rules of a table are one line.
    tail = dense[-400:]
    for size in range(2, 17):
        piece = tail[-size:]
        if len(tail) >= 12 * size and tail.endswith(piece * 12):
            return f"{piece!r} again and again at the end"
    return None


def _short(text: str, limit: int = 120) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")

"""What the fake model says: known answers, echoes, tool calls, JSON by schema, the size of a picture."""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class BadRequest(Exception):
    """The request is one that vLLM answers with 400."""


class Mode(StrEnum):
    """What is wrong with the engine."""

    OK = "ok"
    HANG = "hang"  # every route accepts and never answers
    SLOW_PREFILL = "slow-prefill"  # the first token takes `Timing.prefill_s`; KV usage rises meanwhile
    WRONG_ANSWER = "wrong-answer"
    NEVER_GENERATES = "never-generates"  # /health 200, generation never ends, nothing moves
    COLLAPSE = "collapse"  # !!!!!!!!
    ZERO_ACCEPTANCE = "zero-acceptance"
    PINNED_ACCEPTANCE = "pinned-acceptance"
    BAD_UNICODE = "bad-unicode"
    TOOL_LEAK = "tool-leak"  # the call's markup arrives as content
    REASONING_LEAK = "reasoning-leak"
    STREAM_DIFFERS = "stream-differs"
    OPEN_ROUTES = "open-routes"  # generates without a key
    ZOMBIE = "zombie"  # a request of a client that left runs on
    LONG_PROMPT_DIES = "long-prompt-dies"  # 500 above 200 words, then /health 503


@dataclass(frozen=True)
class Reply:
    """What the model says."""

    content: str
    reasoning: str = ""
    tool: dict[str, Any] | None = None


KNOWN = [
    (r"capital of France", "The capital of France is Paris."),
    (r"17 plus 25", "17 plus 25 is 42."),
    (r"largest planet", "Jupiter is the largest planet."),
]
PROSE = (
    "The river bends past the old mill, and the road follows it for a while before it climbs the hill where "
    "a few houses stand apart, each with a garden that somebody keeps in order through the whole year."
)


def compose(body: dict[str, Any], mode: Mode) -> Reply:
    """The reply of the fake model to a request body."""
    text = text_of(body)
    if mode is Mode.COLLAPSE:
        return Reply("!" * 120)
    answer = next((a for pattern, a in KNOWN if re.search(pattern, text, re.I)), PROSE)
    if echo := re.search(r"exactly:\s*(.+)", text, re.S):
        answer = echo.group(1).strip()
        if mode is Mode.BAD_UNICODE:
            answer = answer[:-1] + "\ufffd"
    elif needle := re.search(r"code word is (\w+)", text):
        answer = needle.group(1)
    if mode is Mode.WRONG_ANSWER:
        answer = "The capital of France is Rome; 17 plus 25 is 41; the word is plum."
    thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", False)
    reasoning = "The user asks something simple." if thinking else ""
    if mode is Mode.REASONING_LEAK and thinking:
        return Reply("<think>The user asks something simple.</think>" + answer)
    if (seen := pictures(body)) and mode is not Mode.WRONG_ANSWER:
        answer = " ".join(f"The picture is {width} pixels wide and {height} high." for width, height in seen)
    messages = body.get("messages") or [{}]
    if messages[-1].get("role") == "tool":
        return Reply(f"The tool says: {text_of({'messages': messages[-1:]})}", reasoning)
    if (schema := schema_of(body)) is not None:
        return Reply(json.dumps(instance(schema)), reasoning)
    tools = body.get("tools")
    if tools and body.get("tool_choice") != "none":
        name = tools[0]["function"]["name"]
        city = (re.search(r"weather in (\w+)", text) or re.search(r"(\w+)\W*$", text) or [None, "Paris"])[1]
        if mode is Mode.TOOL_LEAK:
            return Reply(f"<tool_call>{name}<arg_key>city</arg_key><arg_value>{city}</arg_value></tool_call>")
        return Reply("", reasoning, {"name": name, "arguments": json.dumps({"city": city})})
    return Reply(answer, reasoning)


def text_of(body: dict[str, Any]) -> str:
    if "prompt" in body:
        return str(body["prompt"])
    parts = []
    for message in body.get("messages", []):
        content = message.get("content") or ""
        parts.append(content if isinstance(content, str) else " ".join(p.get("text", "") for p in content))
    return "\n".join(parts)


def schema_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema that the answer must follow, if the request names one."""
    form = body.get("response_format") or {}
    if form.get("type") == "json_object":
        return {"type": "object"}
    if form.get("type") != "json_schema":
        return None
    schema = (form.get("json_schema") or {}).get("schema")
    if not isinstance(schema, dict):
        raise BadRequest("response_format.json_schema.schema is no JSON schema")
    return schema


def instance(schema: dict[str, Any]) -> Any:
    """The plainest value that a schema of objects, lists and scalars allows."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: instance(inner) for name, inner in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [instance(schema.get("items") or {"type": "string"})] * int(schema.get("minItems", 1))
    return {"string": "word", "integer": 1, "number": 1.5, "boolean": True, "null": None}[kind]


def pictures(body: dict[str, Any]) -> list[tuple[int, int]]:
    """Width and height of every picture in a request.

    Raises:
        BadRequest: a part that is no PNG in a data address.
    """
    found = []
    for message in body.get("messages", []):
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "image_url":
                found.append(png_size(str(part["image_url"]["url"])))
    return found


def png_size(url: str) -> tuple[int, int]:
    """Width and height of a PNG in a `data:` address.

    Raises:
        BadRequest: it is none.
    """
    head, _, data = url.partition(",")
    try:
        raw = base64.b64decode(data, validate=True)
        if not head.startswith("data:image/") or raw[:8] != b"\x89PNG\r\n\x1a\n":
            raise ValueError
        width, height = struct.unpack(">II", raw[16:24])
    except (ValueError, struct.error):
        raise BadRequest("the picture cannot be read") from None
    return width, height

"""Render request bodies with a model's own chat template and tokenizer (transformers, imported late)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.prefix.doctor import Body, Piece


def load_body(path: Path) -> Body:
    """Read one request body; a captured `{"body": {...}}` or `{"request": {...}}` is unwrapped.

    Raises:
        SparkloomError: the file is not JSON or holds no messages.
    """
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise SparkloomError(
            f"cannot read the request: {error.strerror}", file=path, mend="give a file with a JSON body"
        ) from error
    except ValueError as error:
        raise SparkloomError(
            f"not JSON: {error}", file=path, mend="save the request's body as JSON"
        ) from error
    for key in ("body", "request"):
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            value = value[key]
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise SparkloomError(
            "no list of messages in the request",
            file=path,
            field="messages",
            mend="give the body of a /v1/chat/completions request",
        )
    for i, message in enumerate(value["messages"]):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise SparkloomError(
                "a message without a role",
                file=path,
                field=f"messages[{i}]",
                value=message,
                mend='each message needs "role" and "content"',
            )
    return value


def load_tokenizer(model: Path) -> Any:
    """The tokenizer of a local checkpoint folder; never asks a hub.

    Raises:
        SparkloomError: the folder holds none that loads.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    except Exception as error:
        raise SparkloomError(
            f"no tokenizer could be loaded: {error}",
            file=model,
            mend="give the folder of the served checkpoint",
        ) from error


class Renderer:
    """A tokenizer with its chat template.

    Args:
        model: folder of a checkpoint (tokenizer.json and a chat template).
    """

    def __init__(self, model: Path) -> None:
        self.tokenizer = load_tokenizer(model)
        if not self.tokenizer.chat_template:
            raise SparkloomError(
                "the tokenizer has no chat template",
                file=model,
                mend="give the folder of a chat model, or add chat_template.jinja",
            )

    def text(self, body: Body) -> str:
        """The prompt's text, as the server would build it.

        Raises:
            SparkloomError: the template refuses the request.
        """
        kwargs: dict[str, Any] = dict(body.get("chat_template_kwargs") or {})
        if body.get("reasoning_effort") is not None:
            kwargs.setdefault("reasoning_effort", body["reasoning_effort"])
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    openai_as_template(body["messages"]),
                    tools=body.get("tools"),
                    tokenize=False,
                    add_generation_prompt=True,
                    **kwargs,
                )
            )
        except Exception as error:
            raise SparkloomError(
                f"the chat template refuses this request: {error}",
                field="messages",
                mend="a server would refuse it as well: correct roles, tool calls or content",
            ) from error

    def render(self, body: Body) -> tuple[str, list[Piece]]:
        """The prompt's text and tokens, as the server would build them."""
        text = self.text(body)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = encoded["offset_mapping"]
        return text, [Piece(i, s, e) for i, (s, e) in zip(encoded["input_ids"], spans, strict=True)]


def openai_as_template(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as servers hand them to templates: arguments of tool calls as objects, not JSON text."""
    out = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message = {**message, "tool_calls": [as_object(call) for call in calls]}
        out.append(message)
    return out


def as_object(call: Any) -> Any:
    """A tool call whose arguments are an object where they are JSON text of one."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        value = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": value}} if isinstance(value, dict) else call

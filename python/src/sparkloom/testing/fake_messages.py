"""Anthropic-style messages for the fake server, in the shapes that vLLM's own `/v1/messages` has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A messages request as a chat request. Texts, tools, tool calls and tool results are carried over."""
    messages: list[dict[str, Any]] = []
    if system := body.get("system"):
        messages.append({"role": "system", "content": text_blocks(system)})
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                messages.append({"role": "tool", "content": text_blocks(block.get("content") or "")})
            elif block["type"] == "text":
                messages.append({"role": message["role"], "content": block["text"]})
    tools = [
        {"type": "function", "function": {"name": t["name"], "parameters": t["input_schema"]}}
        for t in body.get("tools") or ()
    ]
    chat = {"model": body.get("model"), "messages": messages, "max_tokens": body["max_tokens"]}
    return {**chat, "tools": tools} if tools else chat


def text_blocks(content: str | list[dict[str, Any]]) -> str:
    """The text of a string or of a list of blocks."""
    return content if isinstance(content, str) else "\n".join(block.get("text", "") for block in content)


def reply(model: str, text: str, tool: dict[str, Any] | None, finish: str, usage: dict[str, int]) -> Any:
    """The body of a whole answer."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    if tool is not None:
        arguments = json.loads(tool["arguments"])
        blocks.append({"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": arguments})
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[finish]
    counts = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    message = {"id": "msg_fake", "type": "message", "role": "assistant", "model": model, "content": blocks}
    return {**message, "stop_reason": reason, "stop_sequence": None, "usage": counts}


async def events(whole: dict[str, Any], words: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """The answer as server-sent events; text comes in the given words."""

    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
    yield event("message_start", message=start)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            async for word in words:
                yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": word})
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            part = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield event("content_block_delta", index=index, delta=part)
        yield event("content_block_stop", index=index)
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": whole["usage"]["output_tokens"]})
    yield event("message_stop")

"""vLLM's own parser for GLM tool calls, fed with text: whole, or in any chunks of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MARKERS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|system|>",
]


class StubTokenizer:
    """Markers are one token each, as in GLM's vocabulary; every other character is one token."""

    chat_template = ""

    def __init__(self) -> None:
        self.ids = {marker: i for i, marker in enumerate(MARKERS)}
        self.all_special_tokens = list(self.ids)
        self.all_special_ids = list(self.ids.values())

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        pieces = re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text)
        found: list[int] = []
        for piece in pieces:
            found += [self.ids[piece]] if piece in self.ids else [1000 + ord(c) for c in piece]
        return found

    def decode(self, ids: Any, **_: Any) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        return "".join(MARKERS[i] if i < 1000 else chr(i - 1000) for i in ids)


@dataclass
class Said:
    """What a parser made of a text."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def tidy(self) -> Said:
        """Arguments as values, so that spacing of JSON does not count."""
        calls = []
        for c in self.calls:
            try:
                arguments = json.loads(c["arguments"] or "null")
            except ValueError:
                arguments = f"not JSON: {c['arguments']}"
            calls.append({"name": c["name"], "arguments": arguments})
        return Said(self.content, self.reasoning, calls)


class Parser:
    """Reasoning and tool parser as the server puts them together."""

    def __init__(self, tools: dict[str, Any]) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.glm47_moe import Glm47MoeParser

        described = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in tools.items()]
        message = [{"role": "user", "content": "x"}]
        self.request = ChatCompletionRequest(model="m", messages=message, tools=described, tool_choice="auto")
        self.tokenizer = StubTokenizer()
        self.make = Glm47MoeParser

    def _engine(self, think: bool) -> Any:
        options = {"chat_template_kwargs": {"enable_thinking": think}}
        return self.make(self.tokenizer, self.request.tools, **options)

    def whole(self, text: str, think: bool) -> Said:
        """The reply without streaming."""
        ids = self.tokenizer.encode(text)
        reasoning, content, calls = self._engine(think).parse(text, self.request, True, ids)
        made = [{"name": c.name, "arguments": c.arguments} for c in calls or []]
        return Said(content or "", reasoning or "", made)

    def streamed(self, text: str, think: bool, chunks: list[int]) -> Said:
        """The reply put together from a stream whose steps bring `chunks` tokens each."""
        ids = self.tokenizer.encode(text)
        engine, said, at = self._engine(think), Said(), 0
        for size in chunks:
            step = ids[at : at + size]
            at += size
            last = at >= len(ids)
            delta = engine.parse_delta(self.tokenizer.decode(step), step, self.request, [], finished=last)
            if delta is None:
                continue
            said.content += delta.content or ""
            said.reasoning += delta.reasoning or ""
            for call in delta.tool_calls or []:
                while len(said.calls) <= call.index:
                    said.calls.append({"name": "", "arguments": ""})
                if call.function is not None:
                    said.calls[call.index]["name"] += call.function.name or ""
                    said.calls[call.index]["arguments"] += call.function.arguments or ""
        return said


def splits(length: int) -> Iterator[list[int]]:
    """Every cut in two, and every even chunk size from token by token to all at once."""
    for size in range(1, length + 1):
        yield [size] * -(-length // size)
    for cut in range(1, length):
        yield [cut, length - cut]

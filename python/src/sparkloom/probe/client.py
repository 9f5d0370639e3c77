"""The HTTP side of the probe: chat whole and streamed, metrics, abort. httpx, asynchronous."""

from __future__ import annotations

import json
from typing import Any

import httpx

from sparkloom.probe import metrics
from sparkloom.probe.rules import Reply


class Refused(Exception):
    """The server answered with an error status; the text says which and what it said."""


class Client:
    """One OpenAI-compatible server."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        self.base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Reading the machine's certificates takes longer than a whole answer over plain HTTP.
        verify = self.base.startswith("https")
        # No proxy of the environment: the target is this machine or its peer.
        self.http = httpx.AsyncClient(headers=headers, timeout=None, trust_env=False, verify=verify)
        self.open = httpx.AsyncClient(
            timeout=None, trust_env=False, verify=verify
        )  # each check has a deadline
        self.key, self.model = key, model

    async def close(self) -> None:
        """Close every connection."""
        await self.http.aclose()
        await self.open.aclose()

    async def served_model(self) -> str:
        """The model id: as given, or the first that the server lists."""
        if self.model is None:
            response = await self.http.get(f"{self.base}/v1/models", timeout=30.0)
            _raise(response)
            try:
                self.model = str(response.json()["data"][0]["id"])
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise Refused("/v1/models lists no model") from error
        return self.model

    async def health(self) -> int:
        """Status of `/health`."""
        return (await self.http.get(f"{self.base}/health", timeout=10.0)).status_code

    async def engine(self) -> metrics.Engine:
        """One reading of `/metrics`."""
        response = await self.http.get(f"{self.base}/metrics", timeout=10.0)
        _raise(response)
        return metrics.parse(response.text)

    async def chat(self, body: dict[str, Any]) -> Reply:
        """One whole reply."""
        full = {"model": await self.served_model(), **body}
        response = await self.http.post(f"{self.base}/v1/chat/completions", json=full)
        _raise(response)
        try:
            data = response.json()
            choice = data["choices"][0]
            message = choice["message"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Refused(f"a reply without a message: {response.text[:200]}") from error
        usage = data.get("usage") or {}
        return Reply(
            content=message.get("content") or "",
            reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
            tools=[
                {"name": t["function"]["name"], "arguments": t["function"].get("arguments") or ""}
                for t in message.get("tool_calls") or []
            ],
            finish=choice.get("finish_reason"),
            completion_tokens=usage.get("completion_tokens"),
            prompt_tokens=usage.get("prompt_tokens"),
        )

    async def stream(self, body: dict[str, Any], *, leave_after: int | None = None) -> Reply:
        """One streamed reply; with `leave_after`, close the connection after that many pieces."""
        full = {
            "model": await self.served_model(),
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply, pieces, done = Reply(), 0, False
        async with self.http.stream("POST", f"{self.base}/v1/chat/completions", json=full) as response:
            if response.status_code >= 400:
                await response.aread()
            _raise(response)
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                text = line[5:].strip()
                if text == "[DONE]":
                    done = True
                    break
                pieces += _merge(reply, text)
                if leave_after is not None and pieces >= leave_after:
                    return reply
        if not done:
            raise Refused("the stream broke off without [DONE]")
        return reply


def _merge(reply: Reply, text: str) -> int:
    """Add one event to a reply; return how many pieces of text it brought."""
    try:
        event = json.loads(text)
    except ValueError as error:
        raise Refused(f"a stream event that is no JSON: {text[:200]}") from error
    if "error" in event:
        raise Refused(f"the stream says: {str(event['error'])[:200]}")
    if usage := event.get("usage"):
        reply.completion_tokens = usage.get("completion_tokens")
        reply.prompt_tokens = usage.get("prompt_tokens")
    pieces = 0
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        content = delta.get("content") or ""
        thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
        reply.content += content
        reply.reasoning += thought
        pieces += bool(content) + bool(thought)
        for part in delta.get("tool_calls") or []:
            index = part.get("index", 0)
            while len(reply.tools) <= index:
                reply.tools.append({"name": "", "arguments": ""})
            function = part.get("function") or {}
            reply.tools[index]["name"] += function.get("name") or ""
            reply.tools[index]["arguments"] += function.get("arguments") or ""
        if choice.get("finish_reason"):
            reply.finish = choice["finish_reason"]
    return pieces


def _raise(response: httpx.Response) -> None:
    if response.status_code >= 400:
        try:
            text = response.text
        except httpx.ResponseNotRead:
            text = ""
        raise Refused(f"status {response.status_code}: {text[:200].strip()}")

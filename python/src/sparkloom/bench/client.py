"""One streamed chat request, timed: when each piece of text came, and what the server counted."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from sparkloom.errors import Exit, SparkloomError


@dataclass(frozen=True)
class Sample:
    """Timings of one request; times in seconds from the request's start."""

    ttft: float  # first text of any kind (content or reasoning)
    total: float  # last byte
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None  # None: the server does not say
    text: str
    arrivals: list[float] = field(default_factory=list)

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first one; None where fewer than two came."""
        span = self.total - self.ttft
        return (self.completion_tokens - 1) / span if self.completion_tokens > 1 and span > 0 else None

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens over the time to the first token."""
        return self.prompt_tokens / self.ttft if self.ttft > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """The sample as the receipt keeps it (the text as a length only: prompts may be private)."""
        return {
            "ttft_s": round(self.ttft, 6),
            "total_s": round(self.total, 6),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "decode_tps": None if self.decode_tps is None else round(self.decode_tps, 4),
            "characters": len(self.text),
        }


class Server:
    """An OpenAI-compatible server under measurement.

    Args:
        url: base address, with or without a final `/v1`.
        model: model id; None takes the first that `/v1/models` names.
        key: API key, sent as a bearer token; never logged.
        timeout: seconds without any byte after which a request fails.
    """

    def __init__(
        self, url: str, model: str | None = None, key: str | None = None, timeout: float = 600.0
    ) -> None:
        self.root = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(timeout, connect=10.0))
        self._model = model
        self.generated = 0  # completion tokens of all requests of this client

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def model(self) -> str:
        """The model id that requests name."""
        if self._model is None:
            data = (await self._get("/v1/models")).json()
            self._model = str(data["data"][0]["id"])
        return self._model

    async def metrics(self) -> str | None:
        """The Prometheus text of `/metrics`, or None where the server has none."""
        try:
            reply = await self.http.get(self.root + "/metrics", timeout=10.0)
        except httpx.HTTPError:
            return None
        return reply.text if reply.status_code == 200 else None

    async def version(self) -> str | None:
        """What `/version` says, if anything."""
        try:
            reply = await self.http.get(self.root + "/version", timeout=10.0)
            return str(reply.json().get("version")) if reply.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    async def _get(self, path: str) -> httpx.Response:
        try:
            reply = await self.http.get(self.root + path, timeout=30.0)
            reply.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise refused(self.root + path, error.response) from error
        except httpx.HTTPError as error:
            raise unreachable(self.root, error) from error
        return reply

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        extra: dict[str, Any] | None = None,
    ) -> Sample:
        """Send one streamed chat completion and time it.

        Raises:
            SparkloomError: the server refused, broke off, or streamed no usage (then nothing can be
                counted; a client-side token count would be a guess).
        """
        body: dict[str, Any] = {
            "model": await self.model(),
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(extra or {}),
        }
        start = time.perf_counter()
        pieces: list[str] = []
        arrivals: list[float] = []
        usage: dict[str, Any] | None = None
        try:
            async with self.http.stream("POST", self.root + "/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    raise refused(self.root + "/v1/chat/completions", reply)
                async for line in reply.aiter_lines():
                    if not line.startswith("data:") or line[5:].strip() == "[DONE]":
                        continue
                    event = json.loads(line[5:])
                    usage = event.get("usage") or usage
                    for choice in event.get("choices", []):
                        delta = choice.get("delta", {})
                        piece = (
                            delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content")
                        )
                        if piece:
                            pieces.append(piece)
                            arrivals.append(time.perf_counter() - start)
        except httpx.HTTPError as error:
            raise unreachable(self.root, error) from error
        total = time.perf_counter() - start
        if usage is None:
            raise SparkloomError(
                "the stream ended without a usage record",
                file=self.root,
                mend="use a server that honours stream_options.include_usage",
                code=Exit.RANK,
            )
        self.generated += int(usage.get("completion_tokens") or 0)
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        return Sample(
            ttft=arrivals[0] if arrivals else total,
            total=arrivals[-1] if arrivals else total,
            prompt_tokens=int(usage["prompt_tokens"]),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cached_tokens=None if cached is None else int(cached),
            text="".join(pieces),
            arrivals=arrivals,
        )


def refused(url: str, reply: httpx.Response) -> SparkloomError:
    """The error for an HTTP status that is not 200."""
    mend = (
        "give the API key with --api-key-file"
        if reply.status_code == 401
        else "see the server's log for this request"
    )
    return SparkloomError(
        f"the server answered {reply.status_code}",
        file=url,
        detail=reply.text[:500],
        mend=mend,
        code=Exit.RANK,
    )


def unreachable(url: str, error: Exception) -> SparkloomError:
    """The error for a connection that failed or broke off."""
    return SparkloomError(
        f"no answer from the server: {type(error).__name__} {error}".rstrip(),
        file=url,
        mend="check the address and that the server is ready (sparkloom probe URL)",
        code=Exit.NETWORK,
    )

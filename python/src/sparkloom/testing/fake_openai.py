"""A fake OpenAI server with the faults that real engines showed, for tests of probes, agents and benchmarks.

    async with FakeServer(Mode.OK, key="sk-test") as server:
        ...  server.url, server.state.metrics

It computes nothing: it knows a few answers, echoes on request, finds the needle in a long prompt, and counts
tokens as blank-separated words. Its `/metrics` has the names of vLLM. Timing is scripted by `Timing`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from sparkloom.testing import fake_messages
from sparkloom.testing.fake_model import PROSE, BadRequest, Mode, Reply, compose, text_of

__all__ = ["PROSE", "FakeServer", "Mode", "State", "Timing"]


@dataclass
class Timing:
    """Seconds of the scripted engine."""

    first_token_s: float = 0.0
    per_token_s: float = 0.0
    prefill_s: float = 0.0


@dataclass
class State:
    """Counters as vLLM exports them, and what the server saw."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0, 0])
    preemptions: int = 0
    dead: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)

    def text(self, model: str) -> str:
        """The exposition text."""
        label = f'{{engine="0",model_name="{model}"}}'
        rows = {
            "counter vllm:prompt_tokens_total": self.prompt_tokens,
            "counter vllm:generation_tokens_total": self.generation_tokens,
            "counter vllm:num_preemptions_total": self.preemptions,
            "counter vllm:spec_decode_num_drafts_total": self.drafts,
            "counter vllm:spec_decode_num_draft_tokens_total": self.draft_tokens,
            "counter vllm:spec_decode_num_accepted_tokens_total": sum(self.accepted),
            "gauge vllm:num_requests_running": self.running,
            "gauge vllm:num_requests_waiting": self.waiting,
            "gauge vllm:kv_cache_usage_perc": self.kv_usage,
        }
        lines = []
        for name, value in rows.items():
            kind, metric = name.split()
            lines += [f"# TYPE {metric} {kind}", f"{metric}{label} {value}"]
        metric = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines.append(f"# TYPE {metric} counter")
        for position, value in enumerate(self.accepted):
            lines.append(f'{metric}{{engine="0",model_name="{model}",position="{position}"}} {value}')
        return "\n".join(lines) + "\n"


class FakeServer:
    """The server; use it as an asynchronous context manager, or `await start()` and `await stop()`."""

    def __init__(
        self,
        mode: Mode = Mode.OK,
        *,
        model: str = "fake",
        key: str | None = None,
        timing: Timing | None = None,
        drafts: bool = True,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.mode, self.model, self.key, self.drafts = mode, model, key, drafts
        self.timing = timing or Timing()
        self.state = State()
        self.host, self.port = host, port
        self.runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Base address without `/v1`."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> FakeServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; with port 0 the system chooses one."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/version", self.version)
        app.router.add_post("/tokenize", self.tokenize)
        for route in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/invocations"):
            app.router.add_post(route, self.generate)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self.runner.setup()
        site = web.TCPSite(self.runner, self.host, self.port, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Close every connection."""
        if self.runner is not None:
            await self.runner.cleanup()

    # --- routes ---

    async def health(self, _: web.Request) -> web.Response:
        if self.mode is Mode.HANG:
            await asyncio.sleep(3600)
        return web.Response(status=503 if self.state.dead else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        if self.mode is Mode.HANG:
            await asyncio.sleep(3600)
        return web.Response(text=self.state.text(self.model))

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.33.0"})

    async def models(self, request: web.Request) -> web.Response:
        if denied := self._denied(request):
            return denied
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        if self.mode is not Mode.OPEN_ROUTES and (denied := self._denied(request)):
            return denied
        body = await request.json()
        words = text_of(body).split()
        return web.json_response({"count": len(words), "tokens": list(range(len(words)))})

    def _denied(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return None

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if not (self.mode is Mode.OPEN_ROUTES and request.path == "/invocations") and (
            denied := self._denied(request)
        ):
            return denied
        body = await request.json()
        self.state.requests.append(body)
        if body.get("model") not in (None, self.model):
            return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)
        if self.state.dead:
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        if self.mode is Mode.LONG_PROMPT_DIES and len(text_of(body).split()) > 200:
            self.state.dead = True
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        self.state.running += 1
        left = False
        try:
            return await self._answer(request, body)
        except BadRequest as error:
            problem = {"message": str(error), "type": "BadRequestError", "code": 400}
            return web.json_response({"error": problem}, status=400)
        except ConnectionError:
            left = True
            return web.Response(status=499)
        except asyncio.CancelledError:
            left = True
            raise
        finally:
            if not (left and self.mode is Mode.ZOMBIE):
                self.state.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.mode in (Mode.HANG, Mode.NEVER_GENERATES):
            await asyncio.sleep(3600)
        await self._prefill(body)
        messages = request.path == "/v1/messages"
        streamed = bool(body.get("stream"))
        if messages:
            body = fake_messages.as_chat(body)
        reply = compose(body, self.mode)
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 4096)
        words = re.findall(r"\s*\S+", reply.content)
        if self.mode is Mode.COLLAPSE:
            words = [reply.content[i : i + 4] for i in range(0, len(reply.content), 4)]
        if body.get("ignore_eos"):
            words = (words * (1 + limit // max(1, len(words)))) or [" word"] * limit
        stopped = len(words) <= limit
        words = words[:limit]
        finish = "tool_calls" if reply.tool else "stop" if stopped else "length"
        prompt = len(text_of(body).split())
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": len(words),
            "total_tokens": prompt + len(words),
        }
        chat = "messages" in body
        if messages:
            return await self._messages(request, reply, words, finish, usage, streamed)
        if streamed:
            return await self._stream(request, body, reply, words, finish, usage, chat)
        for _ in words:
            await self._token()
        content = "".join(words)
        common = {"id": "fake", "model": self.model, "created": int(time.time()), "usage": usage}
        if not chat:
            choice: dict[str, Any] = {"index": 0, "text": content, "finish_reason": finish}
            return web.json_response({**common, "object": "text_completion", "choices": [choice]})
        message: dict[str, Any] = {"role": "assistant", "content": content or None}
        if reply.reasoning:
            message["reasoning"] = reply.reasoning
        if reply.tool:
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": reply.tool}]
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({**common, "object": "chat.completion", "choices": [choice]})

    async def _messages(
        self,
        request: web.Request,
        reply: Reply,
        words: list[str],
        finish: str,
        usage: dict[str, int],
        streamed: bool,
    ) -> web.StreamResponse:
        whole = fake_messages.reply(self.model, "".join(words), reply.tool, finish, usage)
        if not streamed:
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for event in fake_messages.events(whole, self._paced(words)):
            await response.write(event)
        return response

    async def _prefill(self, body: dict[str, Any]) -> None:
        prompt = len(text_of(body).split())
        slow = self.mode is Mode.SLOW_PREFILL  # a test may change the mode meanwhile
        seconds = self.timing.prefill_s if slow else self.timing.first_token_s
        steps = 20 if slow else 1
        for step in range(steps):
            if slow:
                self.state.kv_usage = (step + 1) / (steps + 1)
            await asyncio.sleep(seconds / steps)
        self.state.kv_usage = 0.0
        self.state.prompt_tokens += prompt

    async def _token(self) -> None:
        if self.timing.per_token_s:
            await asyncio.sleep(self.timing.per_token_s)
        self.state.generation_tokens += 1
        if not self.drafts:
            return
        self.state.drafts += 1
        width = len(self.state.accepted)
        self.state.draft_tokens += width
        for position in range(width):
            accepted = {Mode.ZERO_ACCEPTANCE: False, Mode.PINNED_ACCEPTANCE: True}.get(
                self.mode, self.state.drafts % (position + 2) != 0
            )
            if not accepted:
                break
            self.state.accepted[position] += 1

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        reply: Reply,
        words: list[str],
        finish: str,
        usage: dict[str, int],
        chat: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(delta: dict[str, Any] | None, finish_reason: str | None = None) -> None:
            choices = []
            if delta is not None:
                choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
                choice |= {"delta": delta} if chat else {"text": delta.get("content", "")}
                choices.append(choice)
            event: dict[str, Any] = {"id": "fake", "model": self.model, "choices": choices}
            if delta is None:
                event["usage"] = usage
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        if chat:
            await send({"role": "assistant", "content": ""})
        if reply.reasoning:
            await send({"reasoning": reply.reasoning})
        if self.mode is Mode.STREAM_DIFFERS and len(words) > 1:
            words = words[:-1]
        async for word in self._paced(words):
            await send({"content": word})
        if reply.tool:
            call = {"index": 0, "id": "call-1", "type": "function"}
            await send({"tool_calls": [{**call, "function": {"name": reply.tool["name"], "arguments": ""}}]})
            for piece in re.findall(r".{1,5}", reply.tool["arguments"]):
                await send({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        await send({}, finish)
        if (body.get("stream_options") or {}).get("include_usage"):
            await send(None)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _paced(self, words: list[str]) -> AsyncIterator[str]:
        for word in words:
            await self._token()
            yield word


def main() -> None:
    """Serve until ended: `python -m sparkloom.testing.fake_openai --port 9000 --mode ok`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--mode", default="ok", choices=[m.value for m in Mode])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--per-token", type=float, default=0.0, help="seconds")
    options = parser.parse_args()

    async def serve() -> None:
        timing = Timing(per_token_s=options.per_token)
        mode, model = Mode(options.mode), options.model
        async with FakeServer(
            mode, model=model, timing=timing, host=options.host, port=options.port
        ) as server:
            print(server.url, flush=True)
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()

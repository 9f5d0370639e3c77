"""A server with known token timing: what a benchmark says of it can be checked to the millisecond."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web


@dataclass
class Clockwork:
    """Streams `tokens` tokens, the first after `first` seconds, each next one `gap` seconds later."""

    first: float = 0.05
    gap: float = 0.01
    drafts: tuple[int, ...] = (3, 2, 1)  # accepted at each position for every 4 steps
    cached_share: float = 0.0
    key: str | None = None
    running: int = 0
    foreign: int = 0  # tokens of somebody else's request, with each of ours
    url: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json()
        self.bodies.append(body)
        n = body["max_tokens"]
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)

        async def send(event: dict[str, Any]) -> None:
            await reply.write(f"data: {json.dumps(event)}\n\n".encode())

        loop = asyncio.get_running_loop()
        start = loop.time()
        for i in range(n):
            await asyncio.sleep(max(0.0, start + self.first + i * self.gap - loop.time()))
            await send({"choices": [{"index": 0, "delta": {"content": f"w{i} "}}]})
        prompt = sum(len(m["content"].split()) for m in body["messages"])
        cached = int(prompt * self.cached_share)
        for name, grow in {
            "vllm:generation_tokens_total": n + self.foreign,
            "vllm:spec_decode_num_drafts_total": 4,
            "vllm:spec_decode_num_draft_tokens_total": 4 * len(self.drafts),
            "vllm:spec_decode_num_accepted_tokens_total": sum(self.drafts),
            "vllm:prefix_cache_hits_total": cached,
        }.items():
            self.counters[name] = self.counters.get(name, 0) + grow
        usage = {"prompt_tokens": prompt, "completion_tokens": n}
        await send({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}})
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async def metrics(self, _: web.Request) -> web.Response:
        lines = [f'vllm:num_requests_running{{engine="0"}} {self.running}']
        lines += [f'{k}{{engine="0",model_name="m"}} {v}' for k, v in self.counters.items()]
        steps = self.counters.get("vllm:spec_decode_num_drafts_total", 0) / 4
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{position="{i}"}} {d * steps}' for i, d in enumerate(self.drafts)]
        return web.Response(text="\n".join(lines) + "\n")

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "clockwork"}]})

    async def status(self, _: web.Request) -> web.Response:
        host = {"mem_available": 3 << 30, "gpu": {}}
        return web.json_response({"nodes": [{"name": "spark-a", "facts": {"host": host}}], "engine": None})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "1.2.3"})

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/version", self.version)
        app.router.add_get("/status.json", self.status)
        return app


@pytest.fixture
def clockwork() -> Iterator[Clockwork]:
    """A running clockwork server on a free loopback port."""
    server = Clockwork()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    runner = web.AppRunner(server.app())

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)

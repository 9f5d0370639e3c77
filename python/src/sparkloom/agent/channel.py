"""The agents' channel: small signed JSON messages over HTTP on the fabric address (aiohttp)."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from sparkloom.agent import auth

MAX_REQUEST = 4 << 20  # it is read before the sender is known
MAX_ANSWER = 64 << 20  # evidence of a node
Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # sender's node, message -> answer


class Unreachable(Exception):
    """The peer did not answer, or not with a message that can be trusted."""


class Server:
    """Takes messages on one address. `handlers` by path, for example `/v1/beat`."""

    def __init__(
        self,
        node: str,
        key: bytes,
        nodes: frozenset[str],
        handlers: Mapping[str, Handler],
        clock: Any = time.time,
    ) -> None:
        self.node, self.key, self.clock = node, key, clock
        self.keeper = auth.Gatekeeper(key, nodes)
        self.handlers = handlers
        self.denied: dict[str, int] = {}
        self.runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` only."""
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_post("/v1/{name}", self._take)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self.runner.setup()
        site = web.TCPSite(self.runner, host, port, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Close."""
        if self.runner is not None:
            await self.runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        nonce = auth.nonce_of(request.headers)
        try:
            sender = self.keeper.check(
                request.headers, method="POST", path=request.path, body=body, now=self.clock()
            )
        except auth.Denied as denied:
            self.denied[denied.code] = self.denied.get(denied.code, 0) + 1
            # An unsigned sender gets no signed answer: it would be an oracle.
            if denied.code == "signature":
                return web.json_response({"error": "signature", "text": denied.text}, status=401)
            return self._answer(nonce, 409, {"error": denied.code, "text": denied.text})
        handler = self.handlers.get(request.path)
        if handler is None:
            return self._answer(nonce, 404, {"error": "path", "text": f"no message {request.path}"})
        try:
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError("not an object")
            return self._answer(nonce, 200, await handler(sender, message))
        except (ValueError, KeyError, TypeError) as error:
            return self._answer(nonce, 400, {"error": "message", "text": f"{type(error).__name__}: {error}"})
        except Exception as error:  # the peer must learn of it by a signed answer, not by a broken one
            print(f"a message to {request.path} failed: {type(error).__name__}: {error}", flush=True)
            return self._answer(nonce, 500, {"error": "internal", "text": f"{type(error).__name__}: {error}"})

    def _answer(self, nonce: str, status: int, value: dict[str, Any]) -> web.Response:
        body = json.dumps(value).encode()
        headers = auth.sign_answer(
            self.key, node=self.node, nonce=nonce, status=status, body=body, time=self.clock()
        )
        return web.Response(body=body, status=status, headers=headers, content_type="application/json")


class Peer:
    """Sends messages to one peer. `skew`: the peer's clock minus ours in seconds, once it matters."""

    def __init__(self, me: str, name: str, url: str, key: bytes, clock: Any = time.time) -> None:
        self.me, self.name, self.url, self.key, self.clock = me, name, url, key, clock
        self.skew = 0.0
        self.problem = ""
        self.session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connection."""
        if self.session is not None:
            await self.session.close()

    async def send(self, path: str, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send one message, return the answer. Raises Unreachable (also kept in `problem`)."""
        if self.session is None:
            self.session = aiohttp.ClientSession(trust_env=False)
        body = json.dumps(message).encode()
        try:
            answer = await self._once(path, body, timeout)
            if answer.get("error") == "stale":
                answer = await self._once(path, body, timeout)
            if error := answer.get("error"):
                raise Unreachable(f"{error}: {answer.get('text', '')}")
        except Unreachable as error:
            self.problem = str(error)
            raise
        self.problem = ""
        return answer

    async def _once(self, path: str, body: bytes, timeout: float) -> dict[str, Any]:
        assert self.session is not None
        headers = auth.sign(
            self.key, node=self.me, method="POST", path=path, body=body, time=self.clock() + self.skew
        )
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self.session.post(
                self.url + path, data=body, headers=headers, timeout=limit
            ) as response:
                raw = b""
                async for piece in response.content.iter_chunked(1 << 20):
                    raw += piece
                    if len(raw) > MAX_ANSWER:
                        raise Unreachable(f"an answer of more than {MAX_ANSWER >> 20} MiB")
                status, back = response.status, response.headers
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if status == 401:
            raise Unreachable(
                "signature: the peer does not know our key (agent.key differs between the nodes)"
            )
        try:
            theirs = auth.check_answer(self.key, back, nonce=auth.nonce_of(headers), status=status, body=raw)
            answer = json.loads(raw)
        except (auth.Denied, ValueError) as error:
            raise Unreachable(f"an answer that cannot be trusted: {error}") from error
        if answer.get("error") == "stale":
            self.skew = theirs - self.clock()
        return dict(answer)

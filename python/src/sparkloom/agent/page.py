"""The status page, `/metrics` and `/ready` on loopback."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from sparkloom.agent.daemon import Agent

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class StatusPage:
    """Read only: nothing here changes anything."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.runner: web.AppRunner | None = None
        self.html = resources.files("sparkloom.agent").joinpath("page.html").read_text()

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_get("/status.json", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/ready", self._ready)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self.runner.setup()
        await web.TCPSite(self.runner, host, port, reuse_address=True).start()

    async def stop(self) -> None:
        """Close."""
        if self.runner is not None:
            await self.runner.cleanup()

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=self.html, content_type="text/html", headers=_HEADERS)

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.agent.view(), headers=_HEADERS)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = self.agent.metrics()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _ready(self, _: web.Request) -> web.Response:
        """200 while the pair is ready: for a gateway, which must stop sending when a drain begins."""
        ready = bool(self.agent.view().get("ready"))
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "not ready\n")

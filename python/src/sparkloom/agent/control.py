"""The local control socket: HTTP on a Unix socket that only the service's group may use."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from sparkloom.agent.daemon import Agent


class Control:
    """Serves status, orders, logs and evidence."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.runner: web.AppRunner | None = None
        self.path: Path | None = None

    async def start(self, path: Path) -> None:
        """Listen on `path` (mode 0660)."""
        app = web.Application()
        app.router.add_get("/status", self._status)
        app.router.add_post("/order", self._order)
        app.router.add_post("/gather", self._gather)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self.runner.setup()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            old = os.umask(0o117)
            try:
                await web.UnixSite(self.runner, str(path)).start()
            finally:
                os.umask(old)
        except OSError as error:
            raise SparkloomError(
                f"cannot make the control socket: {error.strerror or error}",
                field="agent.socket",
                value=str(path),
                mend="its folder must be writable for the service's user",
                code=Exit.RESOURCE,
            ) from error
        self.path = path

    async def stop(self) -> None:
        """Close and remove the socket."""
        if self.runner is not None:
            await self.runner.cleanup()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.agent.view())

    async def _order(self, request: web.Request) -> web.Response:
        return await self._do(request, lambda m: self.agent.order(str(m["order"])))

    async def _gather(self, request: web.Request) -> web.Response:
        return await self._do(request, lambda m: self.agent.gather(str(m["what"]), dict(m["message"])))

    async def _do(self, request: web.Request, work: Any) -> web.Response:
        try:
            return web.json_response(await work(json.loads(await request.read())))
        except (ValueError, KeyError, TypeError) as error:
            return web.json_response({"accepted": False, "problems": [str(error)]}, status=400)

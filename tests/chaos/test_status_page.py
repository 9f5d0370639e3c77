"""The status page in headless Chromium, as a phone shows it: readable, live, nothing from elsewhere."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sparkloom.testing.chaos import World

WIDTH = 360  # CSS pixels of a small phone
LONG = "a" * 400 + " and a reason that goes on and on " * 6


class Phone:
    """One page of a browser, spoken to over its debugging socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.session, self.numbers = socket, "", itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        await self.socket.send_json(message | ({"sessionId": self.session} if self.session else {}))
        while True:
            answer = json.loads((await self.socket.receive(timeout=60)).data)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    async def value(self, expression: str) -> Any:
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 60.0) -> None:
        limit = time.monotonic() + seconds
        while not await self.value(expression):
            assert time.monotonic() < limit, await self.value("document.body.innerText")
            await asyncio.sleep(0.1)

    def seen(self, method: str) -> list[dict[str, Any]]:
        return [e["params"] for e in self.events if e.get("method") == method]


async def look(address: str, page: str, work: Callable[[Phone], Any]) -> None:
    async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=1 << 26) as socket:
        phone = Phone(socket)
        target = (await phone.ask("Target.createTarget", url="about:blank"))["targetId"]
        phone.session = (await phone.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Network", "Page", "Runtime"):
            await phone.ask(f"{domain}.enable")
        size = {"width": WIDTH, "height": 740, "deviceScaleFactor": 2, "mobile": True}
        await phone.ask("Emulation.setDeviceMetricsOverride", **size)
        await phone.ask("Page.navigate", url=page)
        await work(phone)


@pytest.mark.heavy
def test_the_page_on_a_phone(world: Callable[..., World], chromium: str, tmp_path: Path) -> None:
    """Every fact stands on it, no row is wider than the screen, and it follows the pair without a reload."""
    w = world(nodes="loopback")
    w.ready()
    page = f"http://127.0.0.1:{w.ports['head']}/"
    shot = tmp_path / "phone.png"

    async def work(phone: Phone) -> None:
        await phone.until("document.getElementById('phase')?.textContent === 'ready'")
        text = await phone.value("document.body.innerText")
        for fact in ("head", "worker", "known-answer", "generation 1", "memory available", "History"):
            assert fact in text
        assert await phone.value("document.documentElement.scrollWidth") <= WIDTH
        texts = "[...document.querySelectorAll('dt,dd,li,h1,h2')]"
        sizes = f"{texts}.map(e => parseFloat(getComputedStyle(e).fontSize))"
        assert await phone.value(f"Math.min(...{sizes})") >= 13
        picture = base64.b64decode((await phone.ask("Page.captureScreenshot"))["data"])
        shot.write_bytes(picture)
        assert picture[:4] == b"\x89PNG"
        assert len(picture) > 10_000  # not a blank page

        assert await asyncio.to_thread(w.signal_rank, "worker")
        await phone.until("document.body.innerText.includes('generation 2')")
        await phone.until("document.title.startsWith('ready')")

        # The worst that an agent may have to say still fits.
        view = await asyncio.to_thread(w.status)
        view |= {"phase": "failed", "ready": False, "reason": {"cause": "x", "node": "head", "text": LONG}}
        view["nodes"][1] |= {"reachable": False, "problem": LONG, "blockers": [LONG]}
        await phone.value(f"show({json.dumps(view)})")
        assert await phone.value("document.documentElement.scrollWidth") <= WIDTH
        assert await phone.value("document.getElementById('phase').className") == "bad"
        urls = {r["request"]["url"] for r in phone.seen("Network.requestWillBeSent")}
        assert urls
        assert not [u for u in urls if not u.startswith((page, "about:", "data:"))]
        assert not phone.seen("Runtime.exceptionThrown")

    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    browser = subprocess.Popen(
        [*command, f"--user-data-dir={tmp_path}/profile", "about:blank"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert browser.stderr is not None
        found = None
        for line in browser.stderr:
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        assert found, "Chromium did not say where it listens"
        asyncio.run(look(found[1], page, work))
    finally:
        browser.kill()
        browser.communicate()

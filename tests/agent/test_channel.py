"""The agents' channel among hostile neighbours: half, large and odd requests, versions, clocks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparkloom.agent import auth
from sparkloom.agent.channel import MAX_REQUEST, Peer, Server, Unreachable


def test_half_open_and_oversized_requests_do_not_stop_the_channel() -> None:
    async def echo(sender: str, message: dict[str, Any]) -> dict[str, Any]:
        return {"got": len(str(message))}

    async def go() -> None:
        key = b"k" * 32
        server = Server("worker", key, frozenset({"head", "worker"}), {"/v1/echo": echo})
        await server.start("127.0.0.1", 0)
        hanging = []
        for text in (
            b"",
            b"POST /v1/echo HTTP/1.1\r\n",
            b"POST /v1/echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(text)
            writer.write_eof()
            hanging.append(writer)
        rubbish_reader, rubbish = await asyncio.open_connection("127.0.0.1", server.port)
        rubbish.write(b"\x16\x03\x01 rubbish\r\n\r\n")
        assert b"400" in await rubbish_reader.readline()
        peer = Peer("head", "worker", f"http://127.0.0.1:{server.port}", key)
        with pytest.raises(Unreachable):
            await peer.send("/v1/echo", {"x": "y" * (MAX_REQUEST + 1)}, 20.0)
        assert await peer.send("/v1/echo", {"x": 1}, 20.0) == {"got": 8}
        for writer in [*hanging, rubbish]:
            writer.close()
        await peer.close()
        await server.stop()

    asyncio.run(go())


def test_a_message_that_breaks_its_handler_gets_a_signed_answer() -> None:
    async def breaks(*_: Any) -> dict[str, Any]:
        raise OSError("the disk is gone")

    async def go() -> None:
        server = Server("worker", b"k" * 32, frozenset({"head"}), {"/v1/beat": breaks})
        await server.start("127.0.0.1", 0)
        peer = Peer("head", "worker", f"http://127.0.0.1:{server.port}", b"k" * 32)
        with pytest.raises(Unreachable, match="internal: OSError: the disk is gone"):
            await peer.send("/v1/beat", {}, 20.0)
        await peer.close()
        await server.stop()

    asyncio.run(go())


def test_a_clock_that_is_set_back_in_between_is_learnt_anew() -> None:
    now = [1000.0]

    async def echo(*_: Any) -> dict[str, Any]:
        return {}

    async def go() -> Server:
        key = b"k" * 32
        server = Server("worker", key, frozenset({"head"}), {"/v1/echo": echo}, clock=lambda: now[0])
        await server.start("127.0.0.1", 0)
        peer = Peer("head", "worker", f"http://127.0.0.1:{server.port}", key, clock=lambda: 1000.0)
        for jump in (0.0, 1e7, -1e7, 3600.0):
            now[0] = 1000.0 + jump
            for _ in range(3):
                await peer.send("/v1/echo", {}, 20.0)
            assert peer.skew == pytest.approx(jump, abs=31.0)
        await peer.close()
        await server.stop()
        return server

    server = asyncio.run(go())
    assert len(server.keeper.seen) <= 3  # nonces of another time are forgotten, whichever way it jumped
    assert server.denied == {"stale": 3}


def test_another_version_of_messages_is_named_to_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    key, real = b"k" * 32, auth.sign

    def newer(*args: Any, **options: Any) -> dict[str, str]:
        monkeypatch.setattr(auth, "VERSION", "2")
        try:
            return real(*args, **options)
        finally:
            monkeypatch.setattr(auth, "VERSION", "1")

    async def go() -> None:
        server = Server("worker", key, frozenset({"head"}), {})
        await server.start("127.0.0.1", 0)
        peer = Peer("head", "worker", f"http://127.0.0.1:{server.port}", key)
        monkeypatch.setattr(auth, "sign", newer)
        with pytest.raises(Unreachable, match="version 2, here is 1: update both nodes"):
            await peer.send("/v1/beat", {}, 20.0)
        await peer.close()
        await server.stop()

    asyncio.run(go())

"""The channel: signed, once only, within the window, versioned; and clocks that differ by hours."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.agent import auth
from sparkloom.agent.channel import Peer, Server, Unreachable
from sparkloom.errors import SparkloomError

KEY = b"k" * 32
NODES = frozenset({"head", "worker"})


def headers(**changes: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "node": "head",
        "method": "POST",
        "path": "/v1/beat",
        "body": b"{}",
        "time": 100.0,
    }
    return auth.sign(KEY, **{**values, **changes})


def check(keeper: auth.Gatekeeper, given: dict[str, str], now: float = 100.0, **changes: Any) -> str:
    values: dict[str, Any] = {"method": "POST", "path": "/v1/beat", "body": b"{}"}
    return keeper.check(given, **{**values, **changes}, now=now)


def code(keeper: auth.Gatekeeper, given: dict[str, str], now: float = 100.0, **changes: Any) -> str:
    with pytest.raises(auth.Denied) as caught:
        check(keeper, given, now, **changes)
    return caught.value.code


def test_a_signed_message_is_taken_once() -> None:
    keeper = auth.Gatekeeper(KEY, NODES)
    sent = headers()
    assert check(keeper, sent) == "head"
    assert code(keeper, sent) == "replay"


@pytest.mark.parametrize("change", [{"path": "/v1/order"}, {"body": b"{ }"}, {"method": "GET"}])
def test_any_change_breaks_the_signature(change: dict[str, Any]) -> None:
    assert code(auth.Gatekeeper(KEY, NODES), headers(), **change) == "signature"


@pytest.mark.parametrize("name", ["Version", "Node", "Time", "Nonce", "Signature"])
def test_any_changed_or_missing_header_breaks_it(name: str) -> None:
    sent = headers()
    full = "X-Sparkloom-" + name
    assert code(auth.Gatekeeper(KEY, NODES), {**sent, full: sent[full] + "1"}) == "signature"
    del sent[full]
    assert code(auth.Gatekeeper(KEY, NODES), sent) == "signature"


def test_another_key_another_node_another_time() -> None:
    assert code(auth.Gatekeeper(b"x" * 32, NODES), headers()) == "signature"
    assert code(auth.Gatekeeper(KEY, NODES), headers(node="stranger")) == "node"
    assert code(auth.Gatekeeper(KEY, NODES), headers(time=60.0)) == "stale"
    assert code(auth.Gatekeeper(KEY, NODES), headers(time=float("nan"))) == "stale"


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "VERSION", "2")
    sent = headers()
    monkeypatch.undo()
    assert code(auth.Gatekeeper(KEY, NODES), sent) == "version"


def test_nonces_are_forgotten_only_after_the_window() -> None:
    keeper = auth.Gatekeeper(KEY, NODES)
    first = headers()
    check(keeper, first)
    for second in range(0, 300, 10):
        check(keeper, headers(time=100.0 + second), now=100.0 + second)
    assert len(keeper.seen) < 10
    assert code(keeper, first, now=400.0) == "stale"  # by now its time keeps it out


@given(st.dictionaries(st.sampled_from(["Version", "Node", "Time", "Nonce", "Signature"]), st.text()))
def test_any_headers_give_a_denial_and_no_traceback(given_headers: dict[str, str]) -> None:
    sent = {"X-Sparkloom-" + k: v for k, v in given_headers.items()}
    with pytest.raises(auth.Denied):
        check(auth.Gatekeeper(KEY, NODES), sent)


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (None, 0o600, "cannot read"),
        ("short", 0o600, "32 are needed"),
        ("k" * 40, 0o644, "read by everybody"),
    ],
)
def test_bad_key_files_are_refused(tmp_path: Path, content: str | None, mode: int, text: str) -> None:
    path = tmp_path / "agent.key"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(SparkloomError, match=text):
        auth.read_key(path)


def talk(server_clock: Any = time.time, server_key: bytes = KEY) -> tuple[dict[str, Any], Peer]:
    async def echo(sender: str, message: dict[str, Any]) -> dict[str, Any]:
        return {"sender": sender, "got": message}

    async def go() -> tuple[dict[str, Any], Peer]:
        server = Server("worker", server_key, NODES, {"/v1/echo": echo}, clock=server_clock)
        await server.start("127.0.0.1", 0)
        peer = Peer("head", "worker", f"http://127.0.0.1:{server.port}", KEY)
        try:
            return await peer.send("/v1/echo", {"a": 1}, 5.0), peer
        finally:
            await peer.close()
            await server.stop()

    return asyncio.run(go())


def test_a_message_goes_and_comes_back() -> None:
    answer, peer = talk()
    assert answer == {"sender": "head", "got": {"a": 1}}
    assert peer.skew == 0.0


def test_a_clock_that_is_five_hours_off_is_learnt_from_a_signed_answer() -> None:
    answer, peer = talk(server_clock=lambda: time.time() + 5 * 3600)
    assert answer["got"] == {"a": 1}
    assert peer.skew == pytest.approx(5 * 3600, abs=5)


def test_another_key_is_named_as_such() -> None:
    with pytest.raises(Unreachable, match=r"agent\.key differs"):
        talk(server_key=b"z" * 32)


def test_nobody_there_is_unreachable() -> None:
    async def go() -> None:
        peer = Peer("head", "worker", "http://127.0.0.1:9", KEY)
        try:
            await peer.send("/v1/echo", {}, 2.0)
        finally:
            await peer.close()

    with pytest.raises(Unreachable):
        asyncio.run(go())

"""Authentication of the agents' channel: HMAC-SHA256 over every message, replay-safe. Pure.

A message carries version, node, time, nonce and a signature over these, method, path and body. A receiver
takes a message once, within `WINDOW_S` of its own clock. Answers are signed too and bound to the request's
nonce, so nobody in between can answer for a peer. Two Sparks without a time server may differ by hours: a
`stale` answer carries the receiver's time, signed, and the sender tries again with that.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkloom.errors import Exit, SparkloomError

VERSION = "1"
WINDOW_S = 30.0
_PREFIX = "X-Sparkloom-"
MIN_KEY = 32


class Denied(Exception):
    """A message that is not taken; `code` is one fixed word."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def read_key(path: Path) -> bytes:
    """The shared secret from a credential file (white space around it does not count).

    Raises:
        SparkloomError: absent, unreadable, readable by others, or shorter than 32 bytes.
    """
    try:
        mode = path.stat().st_mode
        key = path.read_bytes().strip()
    except OSError as error:
        raise SparkloomError(
            f"cannot read the agents' key: {error.strerror}",
            file=path,
            field="agent.key_file",
            mend="make one, the same on all nodes: `head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE`",
            code=Exit.RESOURCE,
        ) from error
    if mode & 0o007:
        raise SparkloomError(
            "the agents' key can be read by everybody",
            file=path,
            field="agent.key_file",
            value=f"mode {mode & 0o777:o}",
            mend=f"chmod 600 {path}",
            code=Exit.RESOURCE,
        )
    if len(key) < MIN_KEY:
        raise SparkloomError(
            f"the agents' key has {len(key)} bytes, {MIN_KEY} are needed",
            file=path,
            field="agent.key_file",
            mend="make one: `head -c 32 /dev/urandom | base64 > FILE`",
        )
    return key


def sign(
    key: bytes, *, node: str, method: str, path: str, body: bytes, time: float, nonce: str | None = None
) -> dict[str, str]:
    """Headers of a request."""
    nonce = nonce or secrets.token_hex(16)
    stamp = f"{time:.3f}"
    mac = _mac(key, "request", VERSION, node, method, path, stamp, nonce, body)
    return {
        _PREFIX + "Version": VERSION,
        _PREFIX + "Node": node,
        _PREFIX + "Time": stamp,
        _PREFIX + "Nonce": nonce,
        _PREFIX + "Signature": mac,
    }


def sign_answer(
    key: bytes, *, node: str, nonce: str, status: int, body: bytes, time: float
) -> dict[str, str]:
    """Headers of an answer to the request with `nonce`."""
    stamp = f"{time:.3f}"
    mac = _mac(key, "answer", VERSION, node, str(status), "", stamp, nonce, body)
    return {
        _PREFIX + "Version": VERSION,
        _PREFIX + "Node": node,
        _PREFIX + "Time": stamp,
        _PREFIX + "Signature": mac,
    }


def check_answer(key: bytes, headers: Mapping[str, str], *, nonce: str, status: int, body: bytes) -> float:
    """Verify an answer; return the peer's time. Raises Denied."""
    node, stamp = headers.get(_PREFIX + "Node", ""), headers.get(_PREFIX + "Time", "")
    version = headers.get(_PREFIX + "Version", "")
    mac = _mac(key, "answer", version, node, str(status), "", stamp, nonce, body)
    if not _equal(mac, headers.get(_PREFIX + "Signature", "")):
        raise Denied("signature", "the answer is not signed with this cluster's key")
    return float(stamp)


@dataclass
class Gatekeeper:
    """Takes each properly signed message once."""

    key: bytes
    nodes: frozenset[str]
    seen: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def check(self, headers: Mapping[str, str], *, method: str, path: str, body: bytes, now: float) -> str:
        """The sender's node. Raises Denied with code version, signature, node, stale or replay."""
        version = headers.get(_PREFIX + "Version", "")
        node, stamp = headers.get(_PREFIX + "Node", ""), headers.get(_PREFIX + "Time", "")
        nonce = headers.get(_PREFIX + "Nonce", "")
        mac = _mac(self.key, "request", version, node, method, path, stamp, nonce, body)
        # The signature first: what is not signed may not even learn which version runs here.
        if not _equal(mac, headers.get(_PREFIX + "Signature", "")):
            raise Denied("signature", "not signed with this cluster's key")
        if version != VERSION:
            raise Denied("version", f"messages of version {version}, here is {VERSION}: update both nodes")
        if node not in self.nodes:
            raise Denied("node", f"{node!r} is no node of this cluster")
        try:
            age = abs(now - float(stamp))
        except ValueError:
            age = float("inf")
        if not age <= WINDOW_S:
            raise Denied("stale", "the message's time is not this node's time")
        # A clock that was set back leaves times of the future here: they are as old.
        while self.seen and abs(now - next(iter(self.seen.values()))) > 2 * WINDOW_S:
            self.seen.popitem(last=False)
        if len(nonce) < 16 or nonce in self.seen:
            raise Denied("replay", "this message was here before")
        self.seen[nonce] = now
        return node


def nonce_of(headers: Mapping[str, str]) -> str:
    """The nonce of a request."""
    return headers.get(_PREFIX + "Nonce", "")


def _equal(mac: str, given: str) -> bool:
    """Compare in constant time; bytes, because text beyond ASCII is an error to `compare_digest`."""
    return hmac.compare_digest(mac.encode(), given.encode(errors="backslashreplace"))


def _mac(key: bytes, *parts: str | bytes) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        data = (
            part.encode(errors="backslashreplace") if isinstance(part, str) else hashlib.sha256(part).digest()
        )
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()

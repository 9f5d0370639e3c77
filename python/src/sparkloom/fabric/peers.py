"""Compare the rails of two nodes: a mismatch on one side passes every check that looks at one node."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.fabric.model import Rail
from sparkloom.findings import Finding, fail, ok, warn


def compare(name: str, rails: Sequence[Rail], peer_name: str, peer_rails: Sequence[Rail]) -> list[Finding]:
    """Findings about two nodes whose n-th rails are connected to each other."""
    findings: list[Finding] = []
    if len(rails) != len(peer_rails):
        findings.append(
            fail(
                "fabric.peer.count",
                f"{name} has {_count(rails)}, {peer_name} has {_count(peer_rails)}",
                "give both nodes the same number of fabric addresses, in the same order",
                _table(name, rails) + "\n" + _table(peer_name, peer_rails),
            )
        )
    for mine, theirs in zip(rails, peer_rails, strict=False):
        findings += _compare_rail(name, mine, peer_name, theirs)
    if not findings:
        findings.append(ok("fabric.peer", f"{_count(rails)} agree between {name} and {peer_name}"))
    return findings


def _compare_rail(name: str, mine: Rail, peer_name: str, theirs: Rail) -> list[Finding]:
    findings = []
    here, there = f"{name} {mine.netdev or mine.rdma}", f"{peer_name} {theirs.netdev or theirs.rdma}"
    if mine.address == theirs.address:
        findings.append(
            fail(
                "fabric.peer.address",
                f"{here} and {there} have the same address {mine.address}",
                "give each node its own address",
            )
        )
    for check, unit, a, b in (
        ("fabric.peer.mtu", "MTU", mine.mtu, theirs.mtu),
        ("fabric.peer.active_mtu", "RDMA active MTU", mine.active_mtu, theirs.active_mtu),
    ):
        if a is None or b is None or a == b:
            continue
        (low, small), (_, large) = sorted([(here, a), (there, b)], key=lambda pair: pair[1])
        findings.append(
            fail(
                check,
                f"{unit} differs: {here} has {a}, {there} has {b}; {low} is the low side",
                f"set {unit} {large} on {low} (it has {small}); small pings pass, full packets do not",
            )
        )
    for node, rail in ((here, mine), (there, theirs)):
        if rail.gid_index is None:
            mend = "run `sparkloom fabric show` there"
            findings.append(fail("fabric.peer.gid", f"{node} has no RoCE v2 GID for {rail.address}", mend))
        if rail.carrier is False:
            findings.append(fail("fabric.peer.link", f"{node} has no carrier", "plug the cable"))
    if mine.rate and theirs.rate and mine.rate != theirs.rate:
        detail = f"{here}: {mine.rate}\n{there}: {theirs.rate}"
        findings.append(warn("fabric.peer.rate", "the link rates differ", "check cable and firmware", detail))
    if not same_network(mine.address, theirs.address):
        findings.append(
            warn(
                "fabric.peer.subnet",
                f"{mine.address} and {theirs.address} do not look like one subnet",
                "connected halves share a subnet; check the order of the addresses",
            )
        )
    return findings


def same_network(a: str, b: str, prefix: int = 24) -> bool:
    """Whether two IPv4 addresses share their first `prefix` bits; True for other families."""
    try:
        first, second = ipaddress.ip_address(a), ipaddress.ip_address(b)
    except ValueError:
        return True
    if first.version != 4 or second.version != 4:
        return True
    shift = 32 - prefix
    return int(first) >> shift == int(second) >> shift


def rails_from_report(value: Any, file: object) -> list[Rail]:
    """The rails of a peer's `sparkloom fabric show --format json`.

    Raises:
        SparkloomError: the value is not such a report.
    """
    rows = value.get("rails") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise _bad("the report has no list `rails`", file, "rails", None)
    rails = []
    for i, row in enumerate(rows):
        try:
            rail = Rail(**{name: row[name] for name in Rail.__slots__})
        except (TypeError, KeyError) as error:
            raise _bad(f"rail {i} is incomplete: {error}", file, f"rails[{i}]", row) from None
        for field, kinds in _KINDS.items():
            if not isinstance(getattr(rail, field), kinds):
                raise _bad(f"rail {i} is not valid", file, f"rails[{i}].{field}", getattr(rail, field))
        rails.append(rail)
    return rails


_TEXT, _NUMBER = (str, type(None)), (int, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    "netdev": _TEXT, "rdma": (str,), "address": (str,), "gid_index": _NUMBER, "gid": _TEXT,
    "gid_type": _TEXT, "mtu": _NUMBER, "active_mtu": _NUMBER, "carrier": (bool, type(None)), "rate": _TEXT,
}  # fmt: skip


def _bad(summary: str, file: object, field: str, value: object) -> SparkloomError:
    mend = "save it with `sparkloom fabric show --format json` on the peer"
    return SparkloomError(summary, file=file, field=field, value=value, mend=mend)


def _count(rails: Sequence[Rail]) -> str:
    return f"{len(rails)} rail" + ("" if len(rails) == 1 else "s")


def _table(name: str, rails: Sequence[Rail]) -> str:
    return "\n".join(f"{name}: {r.netdev or '-'} {r.rdma} {r.address} MTU {r.mtu or '?'}" for r in rails)

"""Probe the fabric itself: full-size packets that may not be fragmented, and how large a test may be."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from sparkloom.commands import MISSING, Answer, ask
from sparkloom.errors import Exit, SparkloomError
from sparkloom.findings import Finding, fail, ok, warn

_MIB = 1 << 20
MIN_BUFFER, MAX_BUFFER = 8 * _MIB, 1024 * _MIB
SHARE = 0.05  # of MemAvailable, for all buffers of one test together
RESERVE = 8 << 30  # bytes that a test leaves to the host in any case


@dataclass(frozen=True, slots=True)
class TestSize:
    """Buffer bytes of one bandwidth test and why."""

    buffer_bytes: int
    total_bytes: int
    reason: str


def bandwidth_buffer(available: int, *, wanted: int | None = None, buffers: int = 2) -> TestSize:
    """The buffer of a bandwidth test, bounded by free memory.

    A 16 GiB collective froze a Spark with a desktop session: GPU and host share one memory.

    Args:
        available: `MemAvailable` of the smaller node, bytes.
        wanted: buffer size that the user asks for, bytes.
        buffers: buffers of that size that the test holds at once (send and receive).

    Raises:
        SparkloomError: exit code 5, when `wanted` is above the share or nothing sensible fits.
    """
    budget = int(min(available * SHARE, available - RESERVE))
    largest = min(budget // max(buffers, 1), MAX_BUFFER) // _MIB * _MIB
    text = f"{_mib(available)} available, a test may hold {SHARE:.0%} and leaves {_mib(RESERVE)}"
    if largest < MIN_BUFFER:
        raise SparkloomError(
            "too little free memory for a bandwidth test",
            field="MemAvailable",
            value=_mib(available),
            detail=text,
            mend="stop the model server or the desktop session first",
            code=Exit.RESOURCE,
        )
    if wanted is not None and not 0 < wanted <= largest:
        raise SparkloomError(
            f"a test with {buffers} buffers of {_mib(wanted)} may freeze this machine",
            field="buffer size",
            value=_mib(wanted),
            detail=text,
            mend=f"ask for {_mib(largest)} or less",
            code=Exit.RESOURCE,
        )
    size = wanted if wanted is not None else largest
    return TestSize(size, size * buffers, text)


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"


def ping_argv(peer: str, source: str, mtu: int, count: int = 3) -> list[str]:
    """A `ping` whose packets fill `mtu` exactly and must not be fragmented."""
    headers = 48 if ipaddress.ip_address(peer).version == 6 else 28
    size = str(max(mtu - headers, 0))
    options = ["-n", "-M", "do", "-s", size, "-c", str(count), "-i", "0.2", "-W", "1", "-I", source]
    return ["ping", *options, peer]


def probe_mtu(source: str, peer: str, mtu: int) -> Finding:
    """Send packets of the full MTU from `source` to `peer` and judge the answers."""
    small = ask(ping_argv(peer, source, 576, 1))  # also warms the ARP cache: a cold one fails the first RDMA
    full = ask(ping_argv(peer, source, mtu))
    return judge_ping(source, peer, mtu, small, full)


def judge_ping(source: str, peer: str, mtu: int, small: Answer, full: Answer) -> Finding:
    """One finding from the answers of a small and a full-size ping."""
    check = "fabric.mtu.probe"
    path = f"{source} -> {peer}"
    if small.status == MISSING:
        return warn(check, f"{path}: not probed, `ping` is not installed", "install iputils")
    if not small.ok:
        mend = "check cable, addresses and firewall of both nodes"
        return fail(check, f"{path}: no answer even to small packets", mend, _said(small))
    if full.ok:
        return ok(check, f"{path}: packets of {mtu} bytes pass unfragmented")
    said = _said(full)
    if "too long" in said.lower() or "frag needed" in said.lower():
        mend = f"set MTU {mtu} on the interface of {source} and on every switch between"
        return fail(check, f"{path}: this side's MTU is below {mtu}", mend, said)
    mend = f"set MTU {mtu} on the interface of {peer} too, and on the switch between"
    summary = f"{path}: small packets pass, packets of {mtu} bytes are lost: the far side's MTU is smaller"
    return fail(check, summary, mend, said)


def _said(answer: Answer) -> str:
    return "\n".join(line for line in (answer.out + answer.err).splitlines() if line.strip())[-600:]

"""Measure each rail by itself with perftest's `ib_write_bw`, before NCCL is blamed.

Raw RDMA below a third of a half's rate is a fault of cable, firmware or PCIe that no NCCL setting mends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkloom.commands import MISSING, TIMED_OUT, Answer, ask
from sparkloom.fabric.model import Rail
from sparkloom.findings import Finding, fail, ok, warn

PROGRAM = "ib_write_bw"
MESSAGE = 1 << 20
"""Bytes of one message where memory allows; more does not make the rate higher."""
FIRST_PORT = 18515
# One half carries about 92 Gb/s at RDMA MTU 1024 and 105 to 112 Gb/s at 4096 (published measurements).
GOOD_GBPS, BAD_GBPS = 85.0, 35.0


@dataclass(frozen=True, slots=True)
class Rate:
    """What one rail carried."""

    rdma: str
    gbps: float


def argv(rail: Rail, index: int, *, peer: str | None, message: int, seconds: int) -> list[str]:
    """The command of one rail: a server without `peer`, else the client."""
    options = ["-d", rail.rdma, "-x", str(rail.gid_index), "-s", str(message), "-D", str(seconds)]
    return [
        PROGRAM,
        *options,
        "-F",
        "--report_gbits",
        "-p",
        str(FIRST_PORT + index),
        *([peer] if peer else []),
    ]


def parse_rate(text: str) -> float | None:
    """The average Gb/s of the last result line (`#bytes #iterations peak average rate`)."""
    rows = re.findall(r"^\s*\d+\s+\d+\s+(\d+\.\d+)\s+(\d+\.\d+)\s+\d+\.\d+", text, re.MULTILINE)
    return float(rows[-1][1]) if rows else None


def run(
    rails: Sequence[Rail], peers: Sequence[str] | None, *, message: int = MESSAGE, seconds: int = 5
) -> tuple[list[Rate], list[Finding]]:
    """Run all rails at once; the other node runs the same at the same time.

    Args:
        rails: this node's rails, each with a GID index.
        peers: addresses of the peer's rails in the same order (client), or `None` (server).
        message: bytes of one message, from `probe.bandwidth_buffer`.
        seconds: length of the test.
    """
    usable = [rail for rail in rails if rail.gid_index is not None]

    def one(index: int) -> Answer:
        peer = peers[index] if peers else None
        wait = seconds + 20.0 if peers else 300.0  # a server waits for its client
        return ask(argv(usable[index], index, peer=peer, message=message, seconds=seconds), timeout_s=wait)

    count = min(len(usable), len(peers)) if peers else len(usable)
    with ThreadPoolExecutor(max(1, count)) as pool:
        answers = list(pool.map(one, range(count)))
    pairs = list(zip(usable, answers, strict=False))
    rates = [Rate(rail.rdma, rate) for rail, a in pairs if (rate := parse_rate(a.out)) is not None]
    return rates, [judge(rail, answer) for rail, answer in pairs]


def judge(rail: Rail, answer: Answer) -> Finding:
    """One finding from one rail's answer."""
    check = "fabric.bandwidth"
    if answer.status == MISSING:
        return warn(check, f"{rail.rdma}: not measured, {PROGRAM} is not installed", "install perftest")
    rate = parse_rate(answer.out)
    if not answer.ok or rate is None:
        said = "\n".join((answer.out + answer.err).splitlines()[-8:])
        late = "the other node did not come" if answer.status == TIMED_OUT else "no result"
        mend = "start the same command on the other node first, without --peer-address"
        return fail(check, f"{rail.rdma}: {late}", mend, said)
    text = f"{rail.rdma}: {rate:.1f} Gb/s"
    if rate < BAD_GBPS:
        mend = (
            "check cable and NIC firmware; a wedged ConnectX-7 comes back after power is removed for a minute"
        )
        return fail(check, f"{text}: raw RDMA is broken, no NCCL setting helps", mend)
    if rate < GOOD_GBPS:
        mend = "check MTU 9000 on both ends and that both nodes use the same physical port"
        return warn(check, f"{text}: below what one half carries", mend)
    return ok(check, text)

"""Name the class of a failure from journal and kernel-log text. Pure functions over text.

Three classes of a dead host look alike from outside: power or reset (the journal stops in the middle), a
killer in user space (the journal goes on), a memory wedge (the driver complains and nothing is killed).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Class(StrEnum):
    """Classes of failure, the most telling first."""

    RESET = "power-or-reset"
    FOREIGN_KILLER = "foreign-oom-killer"
    KERNEL_OOM = "kernel-oom"
    MEMORY_WEDGE = "memory-wedge"
    FABRIC = "fabric"
    NCCL = "nccl"
    CONFIG = "config"
    ENGINE = "engine"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One class with the line that shows it and what to do."""

    kind: Class
    summary: str
    line: str
    mend: str

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return {**asdict(self), "kind": self.kind.value}


@dataclass(frozen=True)
class Texts:
    """What a node's texts say. `boot_ids`: those seen; more than one means a restart of the host."""

    journal: str = ""
    kernel: str = ""
    rank_log: str = ""
    boot_ids: Sequence[str] = ()
    ended_cleanly: bool = True  # the earlier boot's journal has the lines of an orderly shutdown


def classify(texts: Texts) -> list[Finding]:
    """Every class that the texts show, the most telling first; one UNKNOWN when none does."""
    found = [
        *_reset(texts),
        *_killers(texts.journal),
        *_rules(texts.kernel + "\n" + texts.journal, _KERNEL),
        *_rules(texts.rank_log, _RANK),
    ]
    order = list(Class)
    seen: set[Class] = set()
    unique = []
    for finding in sorted(found, key=lambda f: order.index(f.kind)):
        if finding.kind not in seen:
            seen.add(finding.kind)
            unique.append(finding)
    if not unique:
        mend = "read the rank's log from its first error on: `sparkloom logs`"
        unique.append(Finding(Class.UNKNOWN, "no known trace", "", mend))
    return unique


def _reset(texts: Texts) -> list[Finding]:
    ids = [i for i in texts.boot_ids if i]
    if len(set(ids)) < 2:
        return []
    last = _last_line(texts.journal)
    if texts.ended_cleanly:
        return [
            Finding(
                Class.RESET,
                "the host was restarted in an orderly way (its boot id changed)",
                last,
                "nothing to mend if somebody restarted it",
            )
        ]
    summary = "the host lost power or was reset: its boot id changed and the journal stops without a shutdown"
    mend = (
        "cap the GPU clock (sparkloom-clocks.service), check power supply and heat, run the field diagnostic"
    )
    return [Finding(Class.RESET, summary, last, mend)]


_KILLERS = (
    (
        re.compile(r"earlyoom\[\d+\].*(?:sending SIG\w+|killing) (?:to )?process (\d+)(?:.*\"([^\"]+)\")?"),
        "earlyoom",
    ),
    (re.compile(r"systemd-oomd\[\d+\].*Killed (\S+)"), "systemd-oomd"),
    (re.compile(r"nohang\S*\[\d+\].*(?:Sending|sending) SIG\w+ to (\S+)"), "nohang"),
    (re.compile(r"oomd\[\d+\].*(?:kill|Kill)\w* (\S+)"), "oomd"),
)


def _killers(journal: str) -> list[Finding]:
    for line in journal.splitlines():
        for pattern, name in _KILLERS:
            if found := pattern.search(line):
                victim = " ".join(g for g in found.groups() if g)
                return [
                    Finding(
                        Class.FOREIGN_KILLER,
                        f"{name} killed {victim}: a daemon in user space, not the kernel",
                        line.strip()[:300],
                        f"exclude the engine in {name}'s configuration, or disable it on these machines",
                    )
                ]
    return []


Rule = tuple[str, Class, str, str]

_KERNEL: tuple[Rule, ...] = (
    (
        r"Out of memory: Killed process \d+ \([^)]*\)|oom-kill:.*task=",
        Class.KERNEL_OOM,
        "the kernel's OOM killer ended a process",
        "lower serving.kv_bytes or the context; `sparkloom plan` shows the sum",
    ),
    (
        r"NVRM:.*(?:out of memory|Cannot allocate|NV_ERR_NO_MEMORY)|nvidia.*uvm.*(?:livelock|stall)|"
        r"page allocation failure|blocked for more than \d+ seconds",
        Class.MEMORY_WEDGE,
        "the driver or the kernel could not get memory and nothing was killed: a memory wedge",
        "keep the host floor (memory.host_floor_bytes); restart the host, the driver does not recover",
    ),
    (
        r"irisc not responding|mlx5_core.*(?:health|firmware.*error|fatal|Link down)|"
        r"pcieport.*AER:.*(?:Fatal|fatal)|"
        r"AER: (?:Uncorrectable|Multiple Uncorrectable)|mlx5.*health compromised",
        Class.FABRIC,
        "the network card or its PCIe link reports a fault",
        "power the host off, remove the mains plug for a minute, start again; compare firmware of both cards",
    ),
)

_RANK: tuple[Rule, ...] = (
    (
        r"ibv_modify_qp|ibv_reg_mr|NCCL WARN.*(?:NET/IB|ibv_|GID)|Got completion from peer .* with status|"
        r"transport retry counter exceeded|connectFullMesh failed|NET/Socket .*(?:Connection|refused)",
        Class.FABRIC,
        "the ranks could not talk over the fabric",
        "run `sparkloom fabric check` on both nodes: GID index, MTU, address of every rail",
    ),
    (
        r"ncclInternalError|ncclSystemError|ncclUnhandled|NCCL error|Watchdog caught collective|"
        r"ProcessGroupNCCL.*(?:timeout|Timeout)|Timed out after \d+ seconds waiting for clients",
        Class.NCCL,
        "a collective failed or timed out",
        "look at the other rank's log first: this one often only follows",
    ),
    (
        r"ValidationError|unrecognized arguments|error: argument|Unknown quantization|No module named|"
        r"No such file or directory.*(?:config\.json|safetensors)|is not a valid|is not supported|"
        r"PackageNotFoundError|Engine core initialization failed.*(?:config|Config)",
        Class.CONFIG,
        "the engine refused its configuration or model files",
        "run `sparkloom doctor CLUSTER`; the line names the setting",
    ),
    (
        r"EngineDeadError|EngineCore encountered|CUDA error|device-side assert|RPC call to \w+ timed out|"
        r"sample_tokens.*timed out|torch\.OutOfMemoryError|CUDA out of memory|"
        r"Traceback \(most recent call last\)",
        Class.ENGINE,
        "the engine died of an error of its own",
        "start with SPARKLOOM_EXL3_BACKEND=reference to rule the kernels out; report the traceback",
    ),
)


def _rules(text: str, rules: Sequence[Rule]) -> list[Finding]:
    found = []
    for pattern, kind, summary, mend in rules:
        for line in text.splitlines():
            if re.search(pattern, line):
                found.append(Finding(kind, summary, line.strip()[:300], mend))
                break
    return found


def ended_cleanly(journal: str) -> bool:
    """Whether a boot's journal ends with the lines of an orderly shutdown."""
    tail = "\n".join(journal.splitlines()[-60:])
    return bool(
        re.search(
            r"Reached target .*(?:Shutdown|Power-Off|Reboot|Halt)|systemd-shutdown|Journal stopped", tail
        )
    )


def _last_line(journal: str) -> str:
    lines = [line for line in journal.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""

"""The compatibility ledger: which kernel, driver, firmware, NCCL and vLLM are known good or bad.

The rows are data (`ledger.json`), each with its reason and its source. A row applies when every version
rule in `when` holds; a fact that is not known makes a row not apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sparkloom.findings import Finding, Level, ok
from sparkloom.preflight.context import Context
from sparkloom.preflight.gpu import driver_version
from sparkloom.preflight.software import VLLM_CODE, VLLM_FILE, nccl_text
from sparkloom.preflight.system import kernel_release
from sparkloom.preflight.versions import dotted, matches, nccl_version, parse_version

FACTS = ("kernel", "driver", "firmware", "nccl", "vllm")
LEVELS = {"good": Level.ok, "suspect": Level.warn, "bad": Level.fail}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the ledger."""

    name: str
    when: Mapping[str, str]  # fact -> version rule such as ">=6.17,<6.18"
    unless: str  # text in the kernel command line that makes the row not apply
    verdict: str  # good | suspect | bad
    why: str
    mend: str
    source: str


@cache
def load_ledger() -> tuple[Row, ...]:
    """The rows that come with the package."""
    text = resources.files(__package__).joinpath("ledger.json").read_text("utf-8")
    return parse_ledger(json.loads(text))


def parse_ledger(value: Any) -> tuple[Row, ...]:
    """Rows from a JSON value.

    Raises:
        ValueError: a row lacks a key, has an unknown fact, verdict or version rule.
    """
    rows = []
    for i, item in enumerate(value["rows"]):
        row = Row(
            name=item["name"],
            when=dict(item["when"]),
            unless=item.get("unless", ""),
            verdict=item["verdict"],
            why=item["why"],
            mend=item.get("mend", ""),
            source=item["source"],
        )
        if row.verdict not in LEVELS or not row.when or set(row.when) - set(FACTS) or not row.source:
            raise ValueError(f"rows[{i}] ({row.name}) has an unknown fact or verdict, or no source")
        if row.verdict != "good" and not row.mend:
            raise ValueError(f"rows[{i}] ({row.name}) says no without a mend")
        for rule in row.when.values():
            matches((0,), rule)
        rows.append(row)
    return tuple(rows)


def applies(row: Row, facts: Mapping[str, str], cmdline: str = "") -> bool:
    """Whether every rule of the row holds for these facts."""
    if row.unless and row.unless in cmdline.split():
        return False
    for name, rule in row.when.items():
        text = facts.get(name, "")
        version = nccl_version(text) if name == "nccl" else parse_version(text)
        if version is None or not matches(version, rule):
            return False
    return True


def judge(facts: Mapping[str, str], cmdline: str = "", rows: tuple[Row, ...] | None = None) -> list[Finding]:
    """A finding for every row that applies, the good ones together in one."""
    good, findings = [], []
    for row in load_ledger() if rows is None else rows:
        if not applies(row, facts, cmdline):
            continue
        if row.verdict == "good":
            good.append(row)
            continue
        seen = ", ".join(f"{name} {facts[name]}" for name in row.when)
        summary = f"{seen} is {'known to fail' if row.verdict == 'bad' else 'suspect'}: {row.why}"
        findings.append(Finding("ledger", LEVELS[row.verdict], summary, f"source: {row.source}", row.mend))
    known = "\n".join(f"{row.name}: {row.why} (source: {row.source})" for row in good)
    names = ", ".join(f"{name} {facts[name]}" for name in FACTS if facts.get(name))
    if not findings:
        findings = [ok("ledger", f"nothing is known against {names or 'this machine'}", known)]
    return findings


def facts_of(ctx: Context) -> dict[str, str]:
    """The versions of this node as text; unknown ones are left out."""
    firmware = sorted(
        {
            ctx.root.text(f"sys/class/infiniband/{d}/fw_ver") or ""
            for d in ctx.root.names("sys/class/infiniband")
        }
    )
    found = {
        "kernel": kernel_release(ctx),
        "driver": driver_version(ctx),
        "firmware": next((text for text in firmware if text), None),
        "nccl": _nccl(ctx) if ctx.on_gpu else None,
        "vllm": None if ctx.in_container else _vllm(ctx),
    }
    return {name: text for name, text in found.items() if text}


def _nccl(ctx: Context) -> str | None:
    version = nccl_version(nccl_text(ctx) or "")
    return dotted(version) if version else None


def _vllm(ctx: Context) -> str | None:
    import sys

    return (ctx.command(VLLM_FILE, [sys.executable, "-c", VLLM_CODE]) or "").strip() or None


def check_ledger(ctx: Context) -> list[Finding]:
    """Judge this node's versions, and its NIC firmware for being one and the same."""
    findings = judge(facts_of(ctx), ctx.root.text("proc/cmdline") or "")
    versions = {
        device: text
        for device in ctx.root.names("sys/class/infiniband")
        if (text := ctx.root.text(f"sys/class/infiniband/{device}/fw_ver"))
    }
    if len(set(versions.values())) > 1:
        detail = "\n".join(f"{device}: {text}" for device, text in versions.items())
        mend = "update the ConnectX-7 firmware so that all devices have the same"
        findings.append(
            Finding("ledger.firmware", Level.warn, "the NIC devices have different firmware", detail, mend)
        )
    return findings

"""Checks of the disk: room for weights, caches and logs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown
from sparkloom.preflight.system import GIB, size

DF_FILE = "df.txt"
DF_ARGV = ["df", "-P", "-B1"]
GLM_BYTES = 176 * 10**9
"""Size of the 4 bpw checkpoint of GLM-5.3-Flash on disk."""


def parse_df(text: str) -> list[tuple[str, int]]:
    """(mount point, free bytes) from `df -P -B1`."""
    return [
        (match[2], int(match[1]))
        for match in re.finditer(r"^\S+\s+\d+\s+\d+\s+(\d{1,19})\s+\d+%\s+(/\S*)\s*$", text, re.MULTILINE)
    ]


def free_bytes(ctx: Context, path: str) -> int | None:
    """Free bytes of the file system that `path` is or will be on."""
    if ctx.root.live:
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            stat = os.statvfs(place)
        except OSError:
            return None
        return stat.f_bavail * stat.f_frsize
    mounts = parse_df(ctx.root.text(f"commands/{DF_FILE}") or "")
    below = [(len(m), free) for m, free in mounts if m == "/" or f"{path}/".startswith(f"{m}/")]
    return max(below)[1] if below else None


def check_disk(ctx: Context) -> list[Finding]:
    """The weights fit where they go, and caches and logs have room."""
    model = ctx.cluster.model.path
    findings = []
    there = ctx.root.exists(f"{model}/config.json")
    wants = [
        ("state", ctx.cluster.agent.state_directory, 5 * GIB),
        ("cache", ctx.cluster.engine.cache_directory, 5 * GIB),
    ]
    if not there:
        wants.insert(0, ("weights", model, _weight_bytes(ctx)))
    for what, path, need in wants:
        free = free_bytes(ctx, path)
        if free is None:
            findings.append(
                warn("disk", unknown("disk", f"free space for {path}", f"commands/{DF_FILE}", ctx.root))
            )
        elif free < need and what == "weights":
            mend = "free the disk, or set model.path to a larger one"
            findings.append(
                fail("disk", f"{path} has {size(free)} free, the weights need {size(need)}", mend)
            )
        elif free < need:
            mend = f"free the disk: {what} files need room, a full disk ends the engine"
            findings.append(warn("disk", f"{path} has {size(free)} free, {size(need)} are wanted", mend))
    return findings or [ok("disk", f"enough room{'' if there else ' for the weights'} at {model}")]


def _weight_bytes(ctx: Context) -> int:
    return int(GLM_BYTES * 1.02) if "GLM-5.3-Flash" in ctx.cluster.model.repo else GIB


def check_weights(ctx: Context) -> list[Finding]:
    """The pinned weights are here, complete and verified; metadata only, nothing is hashed."""
    from sparkloom.weights.report import status_target
    from sparkloom.weights.targets import targets_in

    findings: list[Finding] = []
    for target in targets_in(ctx.cluster):
        place = ctx.root.resolve(str(target.path))
        if not ctx.root.live and (place is None or not place.is_dir()):
            text = unknown("weights", f"the {target.name}", str(target.path), ctx.root)
            findings.append(warn(f"weights.{target.name}", text))
            continue
        _, found = status_target(replace(target, path=place or target.path))
        findings += found
    return findings


def check_read_ahead(ctx: Context) -> Finding:
    """A large read-ahead on NVMe was seen in traces of hosts that reset while loading."""
    large = {}
    for name in ctx.root.names("sys/block"):
        value = ctx.root.integer(f"sys/block/{name}/queue/read_ahead_kb")
        if name.startswith("nvme") and value is not None and value > 4096:
            large[name] = value
    if large:
        text = ", ".join(f"{name} {value} KiB" for name, value in large.items())
        mend = "echo 128 > /sys/block/NAME/queue/read_ahead_kb"
        return warn("read_ahead", f"read-ahead is large: {text}", mend)
    return ok("read_ahead", "read-ahead is bounded")

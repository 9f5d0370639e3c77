"""Was the host reset under a rank? The boot id at the rank's start against the one of now, and crash records.

A rank that is gone without an orderly stop may have ended by itself or with its whole host; only the boot id
tells these apart. Who starts a rank calls `record_start`, who ends it in order calls `record_stop`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from sparkloom import fsio
from sparkloom.findings import Finding, ok, warn
from sparkloom.preflight.context import Context, unknown
from sparkloom.sysroot import SysRoot

RECORD = "rank-boot.json"
LAST = "rank-boot-reset.json"  # the record of the last rank that a reset of its host took away
BOOT_ID = "proc/sys/kernel/random/boot_id"
PSTORE = "sys/fs/pstore"


def record_start(state: Path, root: SysRoot, now: float | None = None) -> None:
    """Note in the state folder that a rank runs since this boot; a record of a reset is put aside."""
    if was_reset(state, root):
        os.replace(state / RECORD, state / LAST)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    fsio.write_json(state / RECORD, {"boot_id": root.text(BOOT_ID) or "", "started": started})


def record_stop(state: Path) -> None:
    """Note that no rank runs: it was stopped in order, or its end was seen."""
    (state / RECORD).unlink(missing_ok=True)


def was_reset(state: Path, root: SysRoot) -> bool:
    """Whether a rank was on record when the host was booted anew."""
    try:
        before = json.loads((state / RECORD).read_text())["boot_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(before, str) and boot_changed(before, root.text(BOOT_ID))


def boot_changed(before: str | None, now: str | None) -> bool:
    """Whether the machine was booted between two readings of its boot id; unknown counts as no."""
    return bool(before and now and before.strip() != now.strip())


def check_boot(ctx: Context) -> Finding:
    """A changed boot id with a rank on record means that the host was reset, not that a process ended."""
    now = ctx.root.text(BOOT_ID)
    if now is None:
        return warn("boot", unknown("boot", "the boot id", f"/{BOOT_ID}", ctx.root))
    record = ctx.root.json(f"{ctx.cluster.agent.state_directory}/{RECORD}")
    known = record if isinstance(record, dict) else {}
    before, since = known.get("boot_id"), known.get("started")
    crashes = [name for name in ctx.root.names(PSTORE) if name.startswith("dmesg")]
    detail = "\n".join(
        [*([f"rank started {since}"] if isinstance(since, str) else []), *(f"/{PSTORE}/{c}" for c in crashes)]
    )
    if isinstance(before, str) and boot_changed(before, now):
        mend = "look at power, heat and the kernel log of the time before (`journalctl -b -1 -e`)"
        summary = "the host was reset while a rank was running: no orderly stop was recorded"
        return warn("boot", summary, mend, detail)
    if crashes:
        mend = f"read the records in /{PSTORE}, keep a copy, then remove them"
        return warn("boot", f"the kernel left {len(crashes)} crash records", mend, detail)
    return ok("boot", "no reset under a rank and no crash record")

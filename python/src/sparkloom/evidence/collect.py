"""Collect one node's evidence as named texts, redacted before it leaves the node."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from typing import Any

from sparkloom.agent.host import read_host
from sparkloom.agent.settings import Settings
from sparkloom.evidence.classify import Texts, classify, ended_cleanly
from sparkloom.logs import Shelf
from sparkloom.preflight import boot
from sparkloom.redact import Redactor
from sparkloom.sysroot import SysRoot

LOG_BYTES = 400_000
JOURNAL_LINES = 3000


def collect(settings: Settings, root: SysRoot, shelf: Shelf, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """Files by name, and the classes that they show; `secrets` stand nowhere in it. Nothing here raises."""
    files: dict[str, str] = {}
    files["host.json"] = json.dumps(read_host(root).as_dict(), indent=2)
    for name in ("meminfo", "vmstat", "loadavg", "uptime", "cmdline", "version"):
        files[f"proc/{name}"] = root.text(f"/proc/{name}") or ""
    for name in root.names("/sys/fs/pstore"):
        files[f"pstore/{name}"] = (root.text(f"/sys/fs/pstore/{name}") or "")[-LOG_BYTES:]
    for name in ("agent.json", boot.RECORD, boot.LAST):
        with contextlib.suppress(OSError):
            files[name] = (settings.state / name).read_text(errors="replace")
    last_log = ""
    for generation in shelf.generations()[-3:]:
        folder = shelf.folder / f"generation-{generation:08d}"
        for path in sorted(folder.glob("*")):
            if path.suffix in (".log", ".json", ".txt"):
                with contextlib.suppress(OSError):
                    text = path.read_bytes()[-LOG_BYTES:].decode(errors="replace")
                    files[f"generation-{generation}/{path.name}"] = text
                    last_log = text if path.name == "rank.log" else last_log
    journal, kernel, before = "", "", ""
    if root.live:
        journal = _journal("--boot")
        kernel = _journal("--dmesg", "--boot")
        before = _journal("--boot=-1")
        files |= {"journal.txt": journal, "kernel.txt": kernel, "journal-before.txt": before}
    else:
        journal = root.text("/var/log/journal.txt") or ""
        kernel = root.text("/var/log/kern.log") or ""
    boots = ["before" if before else "", root.text("/proc/sys/kernel/random/boot_id") or ""]
    texts = Texts(
        journal=before or journal,
        kernel=kernel,
        rank_log=last_log,
        # An earlier boot in the journal matters only when it broke off.
        boot_ids=boots if before and not ended_cleanly(before) else (),
        ended_cleanly=not before or ended_cleanly(before),
    )
    redact = Redactor((socket.gethostname(), settings.node), secrets)
    return {
        "files": {name: redact.text(text) for name, text in files.items()},
        "classes": [{key: redact.text(value) for key, value in f.as_dict().items()} for f in classify(texts)],
    }


def _journal(*what: str) -> str:
    program = shutil.which("journalctl")
    if program is None:
        return ""
    command = [program, *what, "--no-pager", "--quiet", "--output=short-iso", f"--lines={JOURNAL_LINES}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[-4 * LOG_BYTES :]

"""Facts of one node for status and metrics: memory, swap, boot id, RoCE counters, power and clock.

Unified memory has no framebuffer of its own, so nothing here asks for one.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.meminfo import parse_meminfo
from sparkloom.sysroot import SysRoot

COUNTERS = (
    "packet_seq_err",
    "out_of_sequence",
    "roce_adp_retrans",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
)


@dataclass(frozen=True)
class HostFacts:
    """One reading. Memory in bytes; counters since boot; absent things are empty."""

    boot_id: str = ""
    mem_total: int = 0
    mem_available: int = 0
    mem_free: int = 0
    swap_used: int = 0
    swapped_in_pages: int = 0
    swapped_out_pages: int = 0
    roce: dict[str, int] = field(default_factory=dict)  # "device/port/counter"
    gpu: dict[str, float] = field(default_factory=dict)  # power_w, clock_mhz, temperature_c

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def read_host(root: SysRoot, gpu: dict[str, float] | None = None) -> HostFacts:
    """Read a node; nothing here raises."""
    try:
        memory = parse_meminfo(root.text("/proc/meminfo") or "")
    except SparkloomError:
        memory = {}
    vmstat = dict(
        line.split()[:2] for line in (root.text("/proc/vmstat") or "").splitlines() if len(line.split()) == 2
    )
    return HostFacts(
        boot_id=root.text("/proc/sys/kernel/random/boot_id") or "",
        mem_total=memory.get("MemTotal", 0),
        mem_available=memory.get("MemAvailable", 0),
        mem_free=memory.get("MemFree", 0),
        swap_used=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
        swapped_in_pages=_int(vmstat.get("pswpin")),
        swapped_out_pages=_int(vmstat.get("pswpout")),
        roce=roce_counters(root),
        gpu=gpu or {},
    )


def roce_counters(root: SysRoot) -> dict[str, int]:
    """The error counters of every RDMA port."""
    found: dict[str, int] = {}
    base = "/sys/class/infiniband"
    for device in root.names(base):
        for port in root.names(f"{base}/{device}/ports"):
            for name in COUNTERS:
                value = root.integer(f"{base}/{device}/ports/{port}/hw_counters/{name}")
                if value is not None:
                    found[f"{device}/{port}/{name}"] = value
    return found


def risen(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Counters that rose between two readings, by how much (a counter that fell was reset)."""
    return {k: v - before.get(k, 0) for k, v in after.items() if v > before.get(k, 0)}


def parse_gpu(text: str) -> dict[str, float]:
    """Power, clock and temperature from one line of CSV without units (see `ask_gpu`)."""
    row = (text.splitlines() or [""])[0].split(",")
    found: dict[str, float] = {}
    for name, cell in zip(("power_w", "clock_mhz", "temperature_c"), row, strict=False):
        try:
            found[name] = float(cell.strip())
        except ValueError:  # [N/A]
            continue
    return found


def ask_gpu() -> dict[str, float]:
    """Power, clock and temperature of the GPU; empty without `nvidia-smi`."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = ["--query-gpu=power.draw,clocks.sm,temperature.gpu", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run([program, *query], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_gpu(done.stdout) if done.returncode == 0 else {}


def _int(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0

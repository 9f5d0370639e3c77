"""What the measured machine was doing: free memory, load, clocks, power. Readers take a root path."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.meminfo import read_meminfo

CLAMP_MHZ = 1000.0  # a GB10 under load runs at 2,000 to 3,000 MHz; below this it is held down
CLAMP_WATTS = 20.0  # the clamp that only AC removal clears was seen near 14 W
QUERY = "name,clocks.sm,power.draw,temperature.gpu,utilization.gpu,driver_version"


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi; a value that the driver does not give is None."""

    name: str
    sm_mhz: float | None
    watts: float | None
    celsius: float | None
    utilisation: float | None
    driver: str


def parse_smi(text: str) -> list[Gpu]:
    """Parse `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; short lines are passed over."""
    out = []
    for line in text.splitlines():
        cells = [c.strip() for c in line.split(",")]
        if len(cells) < 6:
            continue
        mhz, watts, celsius, used = (number(c) for c in cells[1:5])
        out.append(Gpu(cells[0], mhz, watts, celsius, used, cells[5]))
    return out


def number(cell: str) -> float | None:
    """A float, or None for `[N/A]` and the like."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if value == value else None


def gpus() -> list[Gpu]:
    """GPUs of this machine; empty where nvidia-smi is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return []
    return parse_smi(done.stdout) if done.returncode == 0 else []


def clamped(gpu: Gpu) -> str | None:
    """Why a GPU that works counts as held down, or None. Judged only under load."""
    if gpu.utilisation is None or gpu.utilisation < 50:
        return None
    if gpu.sm_mhz is not None and gpu.sm_mhz < CLAMP_MHZ:
        return f"{gpu.name} runs at {gpu.sm_mhz:.0f} MHz under load (below {CLAMP_MHZ:.0f})"
    if gpu.watts is not None and gpu.watts < CLAMP_WATTS:
        return f"{gpu.name} draws {gpu.watts:.0f} W under load (below {CLAMP_WATTS:.0f}): take off AC power"
    return None


def mem_available(root: Path = Path("/")) -> int | None:
    """MemAvailable in bytes; None where the file is missing or no meminfo."""
    try:
        return read_meminfo(root / "proc/meminfo")["MemAvailable"]
    except SparkloomError:
        return None


def facts(root: Path = Path("/")) -> dict[str, Any]:
    """The machine as the receipt names it (no host name, no address)."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "machine": platform.machine(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "gpus": [g.__dict__ for g in gpus()],
    }


class Watch:
    """Samples MemAvailable and the GPUs while a benchmark runs (a thread of its own).

    Args:
        root: where `/proc` is.
        period: seconds between two samples.
        nodes: called with each sample, for what other machines say.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        period: float = 0.5,
        nodes: Callable[[], None] = lambda: None,
    ) -> None:
        self.root, self.period, self.nodes = root, period, nodes
        self.least: int | None = None
        self.clamps: set[str] = set()
        self.mhz: list[float] = []
        self.watts: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _loop(self) -> None:
        has_smi = shutil.which("nvidia-smi") is not None
        while True:
            free = mem_available(self.root)
            if free is not None:
                self.least = free if self.least is None else min(self.least, free)
            for gpu in gpus() if has_smi else ():
                if reason := clamped(gpu):
                    self.clamps.add(reason)
                self.mhz += [gpu.sm_mhz] if gpu.sm_mhz is not None else []
                self.watts += [gpu.watts] if gpu.watts is not None else []
            self.nodes()
            if self._stop.wait(self.period):
                return

    def as_dict(self) -> dict[str, Any]:
        """The watch's part of the receipt."""
        return {
            "min_mem_available_bytes": self.least,
            "sm_mhz": [min(self.mhz), max(self.mhz)] if self.mhz else None,
            "watts": [min(self.watts), max(self.watts)] if self.watts else None,
            "clamped": sorted(self.clamps),
        }

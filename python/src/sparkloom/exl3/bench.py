"""Speed of the encoder on this machine: tiles per second and core, with the error it leaves."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.exl3 import viterbi
from sparkloom.exl3.codebooks import codebook
from sparkloom.exl3.device import for_rate, search
from sparkloom.exl3.encode import FILL
from sparkloom.exl3.rates import TILE_SIZE, check_bits
from sparkloom.exl3.tiles import unpack


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        bits, codebook, threads, tiles: what was encoded, and by how many threads.
        device: where, `cpu` or `cuda`.
        seconds: wall time; the compilation is not in it.
        cpu_seconds: processor time of all threads.
        tiles_per_second: by wall time, all threads together.
        tiles_per_cpu_second: what one core does while it works for nothing else.
        nmse: squared error over the squared weights, Gaussian tiles.
    """

    bits: int | float
    codebook: str
    threads: int
    tiles: int
    seconds: float
    cpu_seconds: float
    tiles_per_second: float
    tiles_per_cpu_second: float
    nmse: float
    device: str = "cpu"


def measure(
    bits: int | float, name: str, *, tiles: int = 256, threads: int = 1, seed: int = 0, device: str = "cpu"
) -> Row:
    """Encode Gaussian tiles once and time it; on a GPU with the copies there and back."""
    rate = check_bits(bits, name)
    values = codebook(name).astype(np.float32)
    weights = np.random.default_rng(seed).standard_normal((tiles, TILE_SIZE)).astype(np.float32)
    weights *= values.std(dtype=np.float64) * FILL[rate]

    def work(part: NDArray[np.float32]) -> NDArray[np.uint16]:
        if for_rate(device, rate) == "cuda":
            return search(part, rate, name)
        return viterbi.search(part, rate, name, threads=threads)

    work(weights[:1])
    wall, cpu = time.perf_counter(), time.process_time()
    found = work(weights)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    where = for_rate(device, rate)
    states = unpack(found, rate) if where == "cuda" else found
    error = np.square(values[states] - weights, dtype=np.float64).sum() / np.square(weights).sum()
    return Row(rate, name, threads, tiles, wall, cpu, tiles / wall, tiles / cpu, float(error), where)


def machine() -> dict[str, Any]:
    """The processor that the numbers belong to."""
    model, flags = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = value
    except OSError:
        pass
    wide = next((name for name in ("avx512f", "avx2", "asimd") if name in flags.split()), "none found")
    return {"processor": model, "machine": platform.machine(), "vectors": wide}


def as_dict(rows: list[Row]) -> dict[str, Any]:
    """The result as JSON."""
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}

"""Free memory of a node, read the way the engine will meet it.

On GB10 the GPU has no memory of its own: CUDA's "free" is the host's MemFree, so cached files count as used,
while vLLM's start check reads MemAvailable. The plan counts what is there after clean page cache was dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkloom.errors import SparkloomError
from sparkloom.meminfo import parse_meminfo

MAX_BYTES = 1 << 20
RESERVE_FACTOR = 1.55
"""MemAvailable lost per byte of vm.min_free_kbytes: 6.2 GiB were measured for a floor of 4 GiB."""
RESERVE_NOTICE_BYTES = 512 << 20
ASSUMED_SHARE = 110 / 121.69
"""Share of the total that is taken as free on an unknown node. Equal machines differ by up to 9 GiB: a first
look only."""


@dataclass(frozen=True, slots=True)
class Free:
    """What one node has, in bytes.

    Args:
        total: MemTotal.
        free_bytes: what the plan may use.
        cuda_free: MemFree, what CUDA and a direct-I/O loader see right now.
        min_free: vm.min_free_kbytes in bytes, None when unknown.
        source: where the numbers come from, for people.
    """

    total: int
    free_bytes: int
    cuda_free: int
    min_free: int | None
    source: str

    @property
    def reserve_loss(self) -> int:
        """What a raised vm.min_free_kbytes takes from MemAvailable; 0 for the kernel's own small value."""
        if self.min_free is None or self.min_free < RESERVE_NOTICE_BYTES:
            return 0
        return int(self.min_free * RESERVE_FACTOR)


def from_meminfo(
    info: Mapping[str, int], *, source: str, drop_page_cache: bool = True, min_free: int | None = None
) -> Free:
    """Free memory from the fields of /proc/meminfo (bytes).

    With `drop_page_cache` clean file pages count as free, but never more than MemAvailable, which already
    leaves out the kernel's reserves.
    """
    free, available = info["MemFree"], info["MemAvailable"]
    usable = min(free, available)
    if drop_page_cache:
        files = info.get("Active(file)", 0) + info.get("Inactive(file)", 0)
        busy = info.get("Dirty", 0) + info.get("Writeback", 0)
        dropped = free + max(0, files - busy) + info.get("SReclaimable", 0)
        usable = min(available, dropped) if files else available
    return Free(info["MemTotal"], max(0, min(usable, info["MemTotal"])), free, min_free, source)


_SYSCTL = re.compile(r"^(?:vm\.)?min_free_kbytes\s*[=:]\s*(\d{1,15})\s*(?:kB)?\s*$", re.MULTILINE)


def parse(text: str, *, source: str, drop_page_cache: bool = True, min_free: int | None = None) -> Free:
    """Free memory from the text of /proc/meminfo, with `vm.min_free_kbytes = N` anywhere in it if wanted."""
    info = parse_meminfo(text, source)
    if info["MemTotal"] <= 0 or info["MemFree"] > info["MemTotal"]:
        raise SparkloomError(
            "the numbers contradict each other",
            file=source,
            field="MemFree",
            value=info["MemFree"],
            mend="paste the whole output of `cat /proc/meminfo` of that node, unchanged",
        )
    if found := _SYSCTL.search(text):
        min_free = int(found[1]) * 1024
    return from_meminfo(info, source=source, drop_page_cache=drop_page_cache, min_free=min_free)


def read(path: Path, *, drop_page_cache: bool = True) -> Free:
    """Free memory from a saved /proc/meminfo."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SparkloomError(
            f"cannot read it: {error.strerror}", file=path, mend="give a saved /proc/meminfo"
        ) from None
    if len(raw) > MAX_BYTES:
        raise SparkloomError("too large for a meminfo", file=path, mend="give a saved /proc/meminfo")
    return parse(raw.decode("utf-8", "replace"), source=str(path), drop_page_cache=drop_page_cache)


def live(root: Path = Path("/"), *, drop_page_cache: bool = True) -> Free:
    """Free memory of this machine, or of a saved tree below `root`."""
    found = read(root / "proc/meminfo", drop_page_cache=drop_page_cache)
    try:
        text = (root / "proc/sys/vm/min_free_kbytes").read_text()
        min_free = int(text.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        min_free = None
    return Free(found.total, found.free_bytes, found.cuda_free, min_free, found.source)


def assumed(total: int) -> Free:
    """A node of which only the total is known."""
    free = int(total * ASSUMED_SHARE)
    return Free(total, free, free, None, "assumed, give --meminfo NAME=FILE")

"""Checks of the operating system: kernel, memory lock, huge pages, swap, reserves, boot identity."""

from __future__ import annotations

import re

from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown

GIB = 1 << 30
MIB = 1 << 20


def kernel_release(ctx: Context) -> str | None:
    """`uname -r` of the tree."""
    text = ctx.root.text("proc/sys/kernel/osrelease")
    if text:
        return text.split()[0]
    match = re.match(r"Linux version (\S+)", ctx.root.text("proc/version") or "")
    return match[1] if match else None


def check_kernel(ctx: Context) -> Finding:
    """The kernel is known; the ledger judges it."""
    release = kernel_release(ctx)
    if release is None:
        return warn("kernel", unknown("kernel", "the kernel", "/proc/version", ctx.root))
    if "64k" in release:
        mend = "prefer the 4 KiB kernel, or keep serving.loader at a direct-I/O loader"
        summary = f"kernel {release} has 64 KiB pages: copies from file-backed pages can wedge"
        return warn("kernel", summary, mend)
    return ok("kernel", f"kernel {release}")


def parse_limit(text: str, name: str = "Max locked memory") -> tuple[float, float] | None:
    """Soft and hard limit in bytes (`inf` for unlimited) from `/proc/PID/limits`; `None` when absent."""
    match = re.search(
        rf"^{re.escape(name)}\s+(unlimited|\d{{1,20}})\s+(unlimited|\d{{1,20}})", text, re.MULTILINE
    )
    if not match:
        return None
    soft, hard = (float("inf") if word == "unlimited" else float(word) for word in match.groups())
    return soft, hard


def check_memlock(ctx: Context) -> Finding:
    """RDMA pins memory: a limit ends in "cannot allocate memory" here and a network error on the peer."""
    if ctx.cluster.world == 1 or not ctx.on_gpu:
        return ok("memlock", "not needed: no RDMA in this cluster")
    limits = parse_limit(ctx.root.text("proc/self/limits") or "")
    if limits is None:
        return warn("memlock", unknown("memlock", "the memory-lock limit", "/proc/self/limits", ctx.root))
    soft, hard = limits
    total = (ctx.meminfo() or {}).get("MemTotal", 128 * GIB)
    mend = "LimitMEMLOCK=infinity in the unit, `--ulimit memlock=-1:-1` for a container"
    if hard < total:
        return fail("memlock", f"hard limit of locked memory is {size(hard)}: RDMA registration fails", mend)
    if soft < total:
        return warn(
            "memlock", f"soft limit of locked memory is {size(soft)}", f"`ulimit -l unlimited`, or {mend}"
        )
    return ok("memlock", "locked memory is unlimited")


def check_hugepages(ctx: Context) -> Finding:
    """Reserved huge pages are taken out of the one memory that GPU and host share."""
    info = ctx.meminfo()
    if info is None:
        return warn("hugepages", unknown("hugepages", "the huge-page reserve", "/proc/meminfo", ctx.root))
    reserved = info.get("HugePages_Total", 0) * info.get("Hugepagesize", 0)
    policy = re.search(r"\[(\w+)\]", ctx.root.text("sys/kernel/mm/transparent_hugepage/enabled") or "")
    text = f"transparent huge pages: {policy[1] if policy else 'unknown'}"
    if reserved:
        summary = f"{size(reserved)} are reserved as huge pages and can not hold weights or KV"
        return warn("hugepages", summary, "set vm.nr_hugepages=0 and reboot", text)
    return ok("hugepages", f"no huge pages reserved; {text}")


def check_swap(ctx: Context) -> Finding:
    """Keep a small swap, use it last."""
    info = ctx.meminfo()
    swappiness = ctx.root.integer("proc/sys/vm/swappiness")
    if info is None or "SwapTotal" not in info:
        return warn("swap", unknown("swap", "swap", "/proc/meminfo", ctx.root))
    total, used = info["SwapTotal"], info["SwapTotal"] - info.get("SwapFree", info["SwapTotal"])
    state = f"swap {size(total)}, {size(used)} used, swappiness {'?' if swappiness is None else swappiness}"
    if used > GIB:
        mend = "`swapoff -a && swapon -a` before the start; find out what was pushed out"
        return warn("swap", f"{size(used)} are swapped out: the first requests will be slow", mend, state)
    if swappiness is not None and swappiness > 10 and total:
        summary = f"swappiness is {swappiness}: the host swaps while the engine loads"
        return warn("swap", summary, "set vm.swappiness=0", state)
    if total == 0:
        mend = "add a small swap file (4 GiB) so that a short peak does not kill a process"
        return warn("swap", "there is no swap", mend, state)
    return ok("swap", state)


def check_min_free(ctx: Context) -> Finding:
    """A raised `vm.min_free_kbytes` lowers MemAvailable and fails vLLM's start check."""
    value = ctx.root.integer("proc/sys/vm/min_free_kbytes")
    if value is None:
        source = "/proc/sys/vm/min_free_kbytes"
        return warn("min_free_kbytes", unknown("min_free_kbytes", "the kernel's reserve", source, ctx.root))
    reserve = value * 1024
    mend = "remove the vm.min_free_kbytes line from sysctl.conf and reboot"
    text = f"vm.min_free_kbytes = {value} ({size(reserve)})"
    # The kernel keeps high watermarks at 1.5 times the floor away from MemAvailable.
    summary = f"{text} takes about {size(reserve * 1.55)} from MemAvailable"
    if reserve >= 2 * GIB:
        return fail("min_free_kbytes", summary, mend)
    if reserve >= 512 * MIB:
        return warn("min_free_kbytes", summary, mend)
    return ok("min_free_kbytes", text)


def check_page_cache(ctx: Context) -> Finding:
    """CUDA-free is MemFree on this machine: cached files count as used until they are dropped."""
    info = ctx.meminfo()
    if info is None:
        return warn("page_cache", unknown("page_cache", "the page cache", "/proc/meminfo", ctx.root))
    gap = info["MemAvailable"] - info["MemFree"]
    text = f"MemFree {size(info['MemFree'])}, MemAvailable {size(info['MemAvailable'])}"
    if not ctx.on_gpu or gap < 4 * GIB:
        return ok("page_cache", text)
    summary = f"{size(gap)} are page cache: the GPU sees {size(info['MemFree'])} as free"
    if ctx.cluster.memory.drop_page_cache:
        return ok("page_cache", f"{summary}; it is dropped before the start", text)
    mend = "set memory.drop_page_cache to true, or `sync; echo 3 > /proc/sys/vm/drop_caches` before the start"
    return fail("page_cache", summary, mend, text)


def size(count: float) -> str:
    """Bytes for people."""
    if count == float("inf"):
        return "unlimited"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"

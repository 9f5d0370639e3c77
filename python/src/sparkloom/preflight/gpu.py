"""Checks of the GPU: driver, state of clock and power, other users, CDI specification."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass

from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown
from sparkloom.preflight.system import GIB, size

GPU_FIELDS = (
    "name", "driver_version", "temperature.gpu", "power.draw", "clocks.sm", "clocks.max.sm",
    "clocks_event_reasons.active", "persistence_mode", "compute_cap",
)  # fmt: skip
GPU_ARGV = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv"]
APPS_ARGV = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_gpu_memory", "--format=csv"]
GPU_FILE, APPS_FILE = "nvidia-smi-gpu.csv", "nvidia-smi-apps.csv"

REASONS = {  # bits of clocks_event_reasons that mean less speed than asked for
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def parse_csv(text: str) -> list[dict[str, str]]:
    """Rows of `nvidia-smi --format=csv` by column name; units are kept out of the names.

    Columns that the driver does not support read `[N/A]`; they are kept as they are. A text that is no table
    (an error message) gives no rows.
    """
    try:
        rows = list(csv.reader(text.splitlines(), skipinitialspace=True))
    except csv.Error:
        return []
    if len(rows) < 2:
        return []
    names = [re.sub(r"\s*\[[^\]]*\]$", "", cell).strip() for cell in rows[0]]
    return [
        dict(zip(names, (cell.strip() for cell in row), strict=True))
        for row in rows[1:]
        if len(row) == len(names)
    ]


def number(text: str | None) -> float | None:
    """The leading number of a cell with unit, `None` for `[N/A]` and the like."""
    match = re.match(r"-?\d{1,12}(?:\.\d{1,6})?", text or "")
    return float(match[0]) if match else None


def driver_version(ctx: Context) -> str | None:
    """Version of the NVIDIA kernel module."""
    text = ctx.root.text("proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module.*?\s(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else ctx.root.text("sys/module/nvidia/version") or None


def check_driver(ctx: Context) -> Finding:
    """The open NVIDIA module is loaded."""
    if not ctx.on_gpu:
        return ok("driver", "not needed on the CPU platform")
    version = driver_version(ctx)
    text = ctx.root.text("proc/driver/nvidia/version")
    if version is None:
        mend = "install the NVIDIA open kernel module (580 series) and load it"
        if ctx.root.exists("proc/modules") or ctx.root.live:
            return fail("driver", "the NVIDIA kernel module is not loaded", mend)
        return warn("driver", unknown("driver", "the driver", "/proc/driver/nvidia/version", ctx.root))
    if text and "Open Kernel Module" not in text and "NVRM" in text:
        mend = "install the open module; GB10 is not supported by the closed one"
        return fail("driver", f"driver {version} is the closed kernel module", mend, text)
    return ok("driver", f"driver {version}")


def check_gpu_state(ctx: Context) -> list[Finding]:
    """Clock, power and heat: a throttled node slows the pair, a clamped one makes it useless."""
    if not ctx.on_gpu:
        return [ok("gpu", "not needed on the CPU platform")]
    text = ctx.command(GPU_FILE, GPU_ARGV)
    rows = parse_csv(text or "")
    if not rows:
        return [
            warn(
                "gpu", unknown("gpu", "the GPU's state", "`nvidia-smi`", ctx.root), detail=(text or "")[:300]
            )
        ]
    findings: list[Finding] = []
    for row in rows:
        findings += judge_gpu(row)
    return findings or [ok("gpu", f"{rows[0].get('name', 'GPU')}: {_state(rows[0])}")]


def judge_gpu(row: dict[str, str]) -> list[Finding]:
    """Findings about one GPU; none when all is well."""
    findings = []
    reasons = row.get("clocks_event_reasons.active", "")
    try:
        bits = int(reasons, 0) if reasons else 0
    except ValueError:
        bits = 0
    slow = [name for bit, name in REASONS.items() if bits & bit]
    if slow:
        mend = "let it cool, check the power supply; after a watchdog reboot remove AC power for a minute"
        findings.append(warn("gpu.clock", f"the GPU is throttled: {', '.join(slow)}", mend, _state(row)))
    heat = number(row.get("temperature.gpu"))
    if heat is not None and heat >= 85:
        mend = "cap the clock: `nvidia-smi -lgc 300,2200` costs no measurable decode speed"
        findings.append(warn("gpu.heat", f"the GPU is at {heat:.0f} °C before any load", mend))
    if row.get("persistence_mode") == "Disabled":
        mend = "enable nvidia-persistenced, or the clock cap is lost"
        findings.append(warn("gpu.persistence", "persistence mode is off", mend))
    cap = row.get("compute_cap", "")
    if number(cap) is not None and cap != "12.1":
        mend = "the kernels of this project are built for sm_121a; other GPUs take the reference back end"
        findings.append(warn("gpu.kind", f"compute capability is {cap}, not 12.1 (GB10)", mend))
    return findings


def _state(row: dict[str, str]) -> str:
    """Heat, power and clock of one GPU in words; cells that the driver does not support are left out."""
    heat, power, clock, most = (
        number(row.get(name)) for name in ("temperature.gpu", "power.draw", "clocks.sm", "clocks.max.sm")
    )
    words = [
        f"{heat:.0f} °C" if heat is not None else "",
        f"{power:.0f} W" if power is not None else "",
        f"{clock:.0f} MHz" if clock is not None else "",
        f"at most {most:.0f} MHz" if most is not None else "",
    ]
    return ", ".join(word for word in words if word) or "no readings"


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process on the GPU; `used` is `None` where the driver does not account memory (unified memory)."""

    pid: int
    name: str
    used: int | None


def gpu_users(ctx: Context) -> list[GpuUser] | None:
    """Processes on the GPU, or `None` when nobody can tell."""
    text = ctx.command(APPS_FILE, APPS_ARGV)
    users = []
    for row in parse_csv(text or ""):
        pid = number(row.get("pid"))
        used = number(row.get("used_gpu_memory"))
        if pid is not None:
            name = row.get("process_name", "?")
            users.append(GpuUser(int(pid), name, None if used is None else int(used) << 20))
    if text is not None:
        return users
    holders = _device_holders(ctx)
    return holders if holders or ctx.root.live else None


def _device_holders(ctx: Context) -> list[GpuUser]:
    """Processes with an open GPU device, from `/proc/*/fd`."""
    found = []
    for pid in ctx.root.names("proc"):
        if not (pid.isascii() and pid.isdecimal()):
            continue
        fds = ctx.root.names(f"proc/{pid}/fd")
        if any(re.fullmatch(r"nvidia\d+", ctx.root.link(f"proc/{pid}/fd/{fd}") or "") for fd in fds):
            found.append(GpuUser(int(pid), ctx.root.text(f"proc/{pid}/comm") or "?", None))
    return found


def check_gpu_users(ctx: Context) -> Finding:
    """Nobody else computes on the GPU: its memory is the host's memory."""
    if not ctx.on_gpu:
        return ok("gpu.users", "not needed on the CPU platform")
    users = gpu_users(ctx)
    if users is None:
        return warn("gpu.users", unknown("gpu.users", "who uses the GPU", "`nvidia-smi`", ctx.root))
    if not users:
        return ok("gpu.users", "nobody else uses the GPU")
    table = "\n".join(f"{u.name} (pid {u.pid}): {'?' if u.used is None else size(u.used)}" for u in users)
    known = sum(u.used or 0 for u in users)
    names = ", ".join(f"{u.name} (pid {u.pid})" for u in users[:4])
    if known and known < GIB:
        mend = "stop them if memory is tight"
        return warn("gpu.users", f"others use the GPU a little: {names}, {size(known)}", mend, table)
    mend = "stop them, or stop a pair that already runs (`sparkloom stop`)"
    return fail("gpu.users", f"the GPU is in use: {names}", mend, table)


CDI_FOLDERS = ("etc/cdi", "run/cdi", "var/run/cdi")


def check_cdi(ctx: Context) -> Finding:
    """A container finds GPU and RDMA devices through CDI files that a generator writes at boot."""
    if not ctx.in_container or not ctx.on_gpu:
        return ok("cdi", "not needed: the rank runs natively")
    mend = "order the unit after the CDI generator; `nvidia-ctk cdi generate --output=/run/cdi/nvidia.json`"
    files = [
        f"{folder}/{name}"
        for folder in CDI_FOLDERS
        for name in ctx.root.names(folder)
        if name.endswith((".json", ".yaml", ".yml"))
    ]
    if not files:
        return fail("cdi", "there is no CDI file in /etc/cdi, /run/cdi or /var/run/cdi", mend)
    texts = {name: ctx.root.text(name) or "" for name in dict.fromkeys(files)}
    gpus = [name for name, text in texts.items() if _lists_gpu(text)]
    if not gpus:
        broken = [name for name in texts if name.endswith(".json") and ctx.root.json(name) is None]
        detail = "\n".join(f"/{name}{': no JSON' if name in broken else ''}" for name in texts)
        return fail("cdi", "no CDI file lists a GPU (kind nvidia.com/gpu)", mend, detail)
    rdma = any("/dev/infiniband/" in text for text in texts.values())
    if ctx.cluster.world > 1 and not rdma and not ctx.root.names("dev/infiniband"):
        rdma_mend = "load ib_uverbs; the container needs /dev/infiniband/uverbs*"
        return fail(
            "cdi", "no RDMA device for the container: neither in CDI nor in /dev/infiniband", rdma_mend
        )
    return ok("cdi", f"/{gpus[0]} lists the GPU")


def _lists_gpu(text: str) -> bool:
    """Whether a CDI specification (JSON or YAML) offers a device of kind nvidia.com/gpu."""
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError):
        kind = re.search(r"^kind:\s*[\"']?nvidia\.com/gpu\b", text, re.MULTILINE)
        return bool(kind and re.search(r"/dev/(nvidia\d|dxg|nvhost|nvmap)", text))
    if not isinstance(spec, dict) or spec.get("kind") != "nvidia.com/gpu":
        return False
    devices = spec.get("devices")
    return isinstance(devices, list) and any(isinstance(d, dict) and d.get("name") for d in devices)

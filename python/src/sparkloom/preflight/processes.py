"""Who uses memory and ports: `/proc/*/status` and `/proc/net/tcp`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown
from sparkloom.preflight.system import GIB, size
from sparkloom.sysroot import SysRoot

DESKTOP = frozenset(
    {
        "gnome-shell",
        "gnome-session-b",
        "xorg",
        "xwayland",
        "plasmashell",
        "kwin_wayland",
        "gdm",
        "sddm",
        "mutter",
    }
)


@dataclass(frozen=True, slots=True)
class Process:
    """One process: resident and swapped bytes."""

    pid: int
    name: str
    resident: int
    swapped: int


def read_processes(root: SysRoot) -> list[Process]:
    """All processes with memory of their own, largest first."""
    found = []
    for name in root.names("proc"):
        if not (name.isascii() and name.isdecimal()):
            continue
        process = parse_status(int(name), root.text(f"proc/{name}/status") or "")
        if process:
            found.append(process)
    return sorted(found, key=lambda p: (-p.resident, p.pid))


def parse_status(pid: int, text: str) -> Process | None:
    """One `/proc/PID/status`; `None` for a kernel thread or a text that is none."""
    values = dict(re.findall(r"^(Name|VmRSS|VmSwap):\s+(.{1,64})$", text, re.MULTILINE))
    resident = _kib(values.get("VmRSS"))
    if resident is None:
        return None
    return Process(pid, values.get("Name", "?").strip(), resident, _kib(values.get("VmSwap")) or 0)


def _kib(text: str | None) -> int | None:
    match = re.match(r"(\d{1,15}) kB", text or "")
    return int(match[1]) * 1024 if match else None


def top_table(processes: Iterable[Process], count: int = 8) -> str:
    """The largest processes as text."""
    return "\n".join(f"{size(p.resident):>10}  {p.name} (pid {p.pid})" for p in list(processes)[:count])


def check_consumers(ctx: Context) -> Finding:
    """A desktop session or a second service eats the margin."""
    processes = read_processes(ctx.root)
    if not processes:
        return warn("consumers", unknown("consumers", "who uses memory", "/proc/*/status", ctx.root))
    table = top_table(processes)
    desktop = sorted({p.name for p in processes if p.name.lower() in DESKTOP})
    large = [p for p in processes if p.resident >= 4 * GIB]
    if desktop:
        used = sum(p.resident for p in processes if p.name in desktop)
        mend = "run headless: `systemctl set-default multi-user.target`, then reboot"
        return warn("consumers", f"a desktop session runs ({', '.join(desktop)}, {size(used)})", mend, table)
    if large:
        names = ", ".join(f"{p.name} {size(p.resident)}" for p in large[:3])
        return warn(
            "consumers", f"other processes hold much memory: {names}", "stop what is not needed", table
        )
    total = sum(p.resident for p in processes)
    return ok("consumers", f"processes hold {size(total)}, the largest is {processes[0].name}", table)


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket."""

    address: str
    port: int
    inode: int


def parse_tcp(text: str) -> list[Listener]:
    """The listening sockets of `/proc/net/tcp` or `tcp6`; other lines are passed over."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != "0A":
            continue
        try:
            raw, port = words[1].split(":")
            data = b"".join(bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8))
            found.append(Listener(str(ipaddress.ip_address(data)), int(port, 16), int(words[9])))
        except ValueError:
            continue
    return found


def _clash(listener: str, wanted: str) -> bool:
    """Whether a socket bound to `listener` keeps another from binding `wanted`."""
    have = ipaddress.ip_address(listener)
    mapped = have.ipv4_mapped if isinstance(have, ipaddress.IPv6Address) else None
    have = mapped or have
    want = ipaddress.ip_address(wanted)
    return have.is_unspecified or want.is_unspecified or have == want


def wanted_ports(ctx: Context) -> list[tuple[str, str, int, bool]]:
    """(field, address, port, whether it belongs to the agent) of every socket that this node opens."""
    cluster, node = ctx.cluster, ctx.node
    fabric = str(node.fabric.addresses[0])
    ports = [
        ("agent.port", fabric, cluster.agent_port(node), True),
        ("agent.status_port", "127.0.0.1", cluster.status_port(node), True),
    ]
    if ctx.is_head:
        first = cluster.rendezvous.master_port
        ports.append(("api.port", str(cluster.api.host), cluster.api.port, False))
        ports += [
            ("rendezvous.master_port", fabric, first + i, False)
            for i in range(cluster.rendezvous.generation_ports)
            if first + i <= 65535
        ]
    return ports


def check_ports(ctx: Context) -> list[Finding]:
    """Every port of this node is free, or held by the agent itself."""
    texts = [ctx.root.text(f"proc/net/{name}") for name in ("tcp", "tcp6")]
    if texts[0] is None and texts[1] is None:
        return [warn("ports", unknown("ports", "which ports are free", "/proc/net/tcp", ctx.root))]
    listeners = [item for text in texts if text for item in parse_tcp(text)]
    findings = []
    for field, address, port, agents in wanted_ports(ctx):
        taken = [item for item in listeners if item.port == port and _clash(item.address, address)]
        if not taken:
            continue
        owner = owner_of(ctx.root, taken[0].inode)
        if agents and owner and "sparkloom" in owner:
            continue
        held = f"port {port} ({field}) is taken on {taken[0].address} by {owner or 'an unknown process'}"
        mend = f"stop that process, or choose another {field}"
        findings.append((warn if agents else fail)("ports", held, mend))
    names = ", ".join(str(port) for _, _, port, _ in wanted_ports(ctx))
    return findings or [ok("ports", f"free: {names}")]


def owner_of(root: SysRoot, inode: int) -> str | None:
    """`name (pid N)` of the process that holds a socket, as far as the tree tells."""
    for pid in root.names("proc"):
        if not (pid.isascii() and pid.isdecimal()):
            continue
        if any(
            root.link(f"proc/{pid}/fd/{fd}") == f"socket:[{inode}]" for fd in root.names(f"proc/{pid}/fd")
        ):
            line = (root.text(f"proc/{pid}/cmdline") or "").replace("\0", " ")
            agent = " of sparkloom" if "sparkloom" in line else ""
            return f"{root.text(f'proc/{pid}/comm') or '?'} (pid {pid}{agent})"
    return None

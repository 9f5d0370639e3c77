"""Choose the rails: for each fabric address the RDMA device and the RoCE v2 GID entry that maps it.

A GID index is never a constant: the table's order depends on the order in which addresses came up, so two
equal machines may have the same address at different indexes. No matching entry is a refusal that shows the
table and names the cause.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from sparkloom.fabric.model import Address, Fabric, Gid, Rail, RdmaPort
from sparkloom.findings import Finding, fail, ok, warn

WANTED_MTU = 9000
_ROCE_HEADERS = 96  # GRH, UDP, BTH, extension headers and ICRC that the kernel leaves room for


def rdma_mtu(mtu: int) -> int | None:
    """The RDMA payload size that the kernel picks for an interface MTU; `None` below 256 + headers."""
    return next((size for size in (4096, 2048, 1024, 512, 256) if mtu - _ROCE_HEADERS >= size), None)


def choose_rails(
    fabric: Fabric, addresses: Sequence[Address], devices: Sequence[str] = (), *, mtu: int = WANTED_MTU
) -> tuple[list[Rail], list[Finding]]:
    """The rail of each address, and findings about the addresses, ports and MTUs.

    Args:
        fabric: what `read_fabric` saw.
        addresses: fabric addresses of this node; when empty, every rail that is up is taken.
        devices: RDMA devices to use, if they are given by hand; others are not considered.
        mtu: MTU that every rail should have, bytes.
    """
    ports = [p for p in fabric.ports if not devices or p.device in devices]
    findings = _unknown_devices(fabric, devices)
    if not fabric.ports:
        mend = "load mlx5_ib, plug the ConnectX-7 cable, and check `ls /sys/class/infiniband`"
        return [], [*findings, fail("fabric.devices", "this machine shows no RDMA device", mend)]
    wanted = list(addresses) or detect_addresses(fabric, ports)
    if not wanted:
        finding = fail(
            "fabric.gid",
            "no RDMA port that is up has a RoCE v2 GID of an IPv4 address",
            _cause(fabric, ports, None)[1],
            gid_table(ports),
        )
        return [], [*findings, finding]
    rails: list[Rail] = []
    for address in wanted:
        rail, found = _choose(fabric, ports, address, _left_over(fabric, ports, address, wanted))
        findings += found
        rails += [rail] if rail else []
    findings += _check_rails(fabric, rails, mtu)
    findings += _check_twins(fabric, rails, bool(devices))
    return rails, findings


def _unknown_devices(fabric: Fabric, devices: Sequence[str]) -> list[Finding]:
    known = list(dict.fromkeys(port.device for port in fabric.ports))
    mend = f"this machine has {', '.join(known) or 'none'}"
    return [
        fail("fabric.device", f"there is no RDMA device {name}", mend)
        for name in devices
        if name not in known
    ]


def detect_addresses(fabric: Fabric, ports: Iterable[RdmaPort]) -> list[Address]:
    """The IPv4 fabric addresses of all ports that are up, in the order of the devices."""
    found: dict[Address, None] = {}
    for port in ports:
        if port.active is False:
            continue
        for gid in port.gids:
            dev = fabric.netdevs.get(gid.ndev or next(iter(port.netdevs), ""))
            address = gid.value.ipv4_mapped if gid.value and gid.is_roce_v2 else None
            if address and not (dev and dev.carrier is False):
                found.setdefault(address)
    return list(found)


def _left_over(
    fabric: Fabric, ports: Sequence[RdmaPort], address: Address, wanted: Sequence[Address]
) -> list[RdmaPort]:
    """Ports on which a missing address should be: up, and not those of the other addresses."""
    others = [other for other in wanted if other != address]
    free = [p for p in ports if not any(g.maps(o) and g.is_roce_v2 for g in p.gids for o in others)]
    up = [p for p in free if p.active is not False and not _no_carrier(fabric, p)]
    return up or free or list(ports)


def _no_carrier(fabric: Fabric, port: RdmaPort) -> bool:
    devs = [fabric.netdevs[name] for name in port.netdevs if name in fabric.netdevs]
    return any(dev.carrier is False for dev in devs)


def _choose(
    fabric: Fabric, ports: Sequence[RdmaPort], address: Address, left_over: Sequence[RdmaPort]
) -> tuple[Rail | None, list[Finding]]:
    """The rail of one address, or the refusal with its cause."""
    hits = [(port, gid) for port in ports for gid in port.gids if gid.maps(address) and gid.is_roce_v2]
    holders = {name for name, dev in fabric.netdevs.items() if dev.holds(address)}
    # VLAN and macvlan interfaces of one device may share an address: the entry of its holder wins.
    preferred = [(p, g) for p, g in hits if g.ndev in holders] or hits
    devices = {port.device for port, _ in preferred}
    if len(devices) > 1:
        up = [(p, g) for p, g in preferred if _up(fabric, p, g)]
        if len({port.device for port, _ in up}) != 1:
            names = ", ".join(sorted(devices))
            mend = "give each half of the port its own address in its own subnet"
            summary = f"address {address} is on several RDMA devices: {names}"
            return None, [fail("fabric.gid", summary, mend, gid_table(p for p, _ in preferred))]
        preferred = up
    if preferred:
        port, gid = preferred[0]
        text = f"{address}: {port.device} entry {gid.index} ({gid.type})"
        return _rail(fabric, port, gid, address), [ok("fabric.gid", text)]
    near = [p for p in ports if holders & set(p.netdevs) or any(g.maps(address) for g in p.gids)]
    near = near or list(left_over)
    cause, mend = _cause(fabric, near, address, bool(holders & {n for p in near for n in p.netdevs}))
    finding = fail(
        "fabric.gid",
        f"no RoCE v2 GID maps the fabric address {address}: {cause}",
        mend,
        gid_table(near),
    )
    return (_rail(fabric, near[0], None, address) if len(near) == 1 else None), [finding]


def _rail(fabric: Fabric, port: RdmaPort, gid: Gid | None, address: Address) -> Rail:
    name = (gid.ndev if gid else None) or next(
        (n for n in port.netdevs if n in fabric.netdevs and fabric.netdevs[n].holds(address)),
        port.netdevs[0] if port.netdevs else None,
    )
    dev = fabric.netdevs.get(name or "")
    return Rail(
        netdev=name,
        rdma=port.device,
        address=str(address),
        gid_index=gid.index if gid else None,
        gid=gid.text if gid else None,
        gid_type=gid.type if gid else None,
        mtu=dev.mtu if dev else None,
        active_mtu=port.active_mtu,
        carrier=dev.carrier if dev else None,
        rate=port.rate,
    )


def _up(fabric: Fabric, port: RdmaPort, gid: Gid) -> bool:
    dev = fabric.netdevs.get(gid.ndev or "")
    return port.active is not False and not (dev is not None and dev.carrier is False)


def _cause(
    fabric: Fabric, ports: Sequence[RdmaPort], address: Address | None, near: bool = False
) -> tuple[str, str]:
    """Why no entry matches, and the mend, from what the tables do contain."""
    what = address or "the fabric address"
    gids = [gid for port in ports for gid in port.gids if not gid.is_zero]
    same = [gid for gid in gids if address is not None and gid.maps(address)]
    names = ", ".join(dict.fromkeys(n for p in ports for n in p.netdevs)) or "the fabric interface"
    holder = next((n for n, d in fabric.netdevs.items() if address is not None and d.holds(address)), None)
    if same:
        types = ", ".join(sorted({gid.type or "unreadable type" for gid in same}))
        mend = "enable RoCE v2 on the device (`cma_roce_mode -d DEVICE -p 1 -m 2`) and set the address again"
        return f"its entry is of another kind ({types})", mend
    if holder is not None and not near:
        return (
            f"the address is on {holder}, which is no interface of an RDMA device",
            f"name the address of a ConnectX-7 half ({names}) in the cluster file, not that of {holder}",
        )
    down = [n for p in ports for n in p.netdevs if (d := fabric.netdevs.get(n)) and d.carrier is False]
    if ports and all(p.active is False or set(p.netdevs) & set(down) for p in ports):
        return "the port is down", f"plug the cable or bring the link up on {names} and set {what} there"
    if holder is not None:
        return (
            f"{holder} has the address, but the device's table has no entry for it",
            f"take {holder} down and up again; if that does not help, reload mlx5_ib",
        )
    if not gids:
        return "every entry is zero", f"bring {names} up and set {what} on it"
    mapped = sorted({str(g.value.ipv4_mapped) for g in gids if g.value and g.value.ipv4_mapped})
    if not mapped:
        return (
            "the table has IPv6 entries only (link-local), so no IPv4 address is set on the interface",
            f"set {what} on {names}; NetworkManager or netplan may have dropped it after a link flap",
        )
    return (
        f"the table maps other addresses ({', '.join(mapped)})",
        f"set {what} on {names}, or correct the address in the cluster file",
    )


def gid_table(ports: Iterable[RdmaPort]) -> str:
    """The GID tables as text; empty slots are counted, not listed."""
    lines = []
    for port in dict.fromkeys(ports):
        lines.append(
            f"{port.device} port {port.port} ({', '.join(port.netdevs) or 'no interface'}; "
            f"{port.state or 'state unknown'}):"
        )
        shown = [gid for gid in port.gids if not gid.is_zero]
        lines += [f"  {g.index:>3}  {g.text}  {g.type or '?'}  {g.ndev or '-'}" for g in shown]
        empty = len(port.gids) - len(shown)
        lines += [f"  {empty} empty (zero)"] if empty else [] if shown else ["  no entry at all"]
    return "\n".join(lines)


def _check_rails(fabric: Fabric, rails: Sequence[Rail], mtu: int) -> list[Finding]:
    """Link state and MTU of the chosen rails."""
    findings = []
    ports = {port.device: port for port in fabric.ports}
    for rail in rails:
        port = ports[rail.rdma]
        name = rail.netdev or rail.rdma
        if rail.carrier is False or port.active is False:
            carrier = {True: "up", False: "down", None: "unknown"}[rail.carrier]
            state = f"carrier {carrier}, RDMA state {port.state or 'unknown'}"
            mend = "plug the cable, or use the port that is up (`sparkloom fabric show` without --address)"
            findings.append(fail("fabric.link", f"{name} is down: {state}", mend))
        if ipaddress.ip_address(rail.address).is_link_local:
            summary = f"{rail.address} on {name} is a link-local address and may change at the next boot"
            findings.append(warn("fabric.address", summary, "set a static address in a subnet of its own"))
        if rail.mtu is not None and rail.mtu < mtu:
            rdma = rdma_mtu(rail.mtu)
            summary = (
                f"{name} has MTU {rail.mtu}, so RDMA packets carry {rdma or 'under 256'} bytes, not 4096"
            )
            findings.append(warn("fabric.mtu", summary, f"set MTU {mtu} on {name} on both nodes"))
        elif rail.mtu is not None and rail.active_mtu is not None and rail.active_mtu < 4096:
            summary = f"{rail.rdma} runs at RDMA MTU {rail.active_mtu} although {name} has MTU {rail.mtu}"
            mend = f"take {name} down and up again so that the RDMA device sees the new MTU"
            findings.append(warn("fabric.mtu", summary, mend))
        elif rail.mtu is not None and rail.mtu > mtu:
            summary = f"{name} has MTU {rail.mtu}, {mtu} is declared"
            findings.append(warn("fabric.mtu", summary, f"set MTU {mtu} on {name}, or declare {rail.mtu}"))
    rates = {rail.rate for rail in rails if rail.rate}
    if len(rates) > 1:
        detail = "\n".join(f"{rail.rdma}: {rail.rate}" for rail in rails)
        findings.append(
            warn("fabric.rate", "the rails run at different rates", "check cable and firmware", detail)
        )
    findings += _shared_subnets(fabric, rails)
    return findings


def _shared_subnets(fabric: Fabric, rails: Sequence[Rail]) -> list[Finding]:
    seen: dict[str, str] = {}
    for rail in rails:
        dev = fabric.netdevs.get(rail.netdev or "")
        for address, prefix in dev.addresses if dev else ():
            if str(address) != rail.address or prefix is None:
                continue
            network = _network(address, prefix)
            if network in seen:
                summary = f"{seen[network]} and {rail.netdev} are both in {network}"
                mend = "give each half its own subnet, or replies leave by the wrong half"
                return [warn("fabric.subnet", summary, mend)]
            seen[network] = rail.netdev or rail.rdma
    return []


def _network(address: Address, prefix: int) -> str:
    try:
        return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))
    except ValueError:
        return f"{address}/{prefix}"


def twin_key(port: RdmaPort) -> tuple[str, ...] | None:
    """What the two halves of one QSFP port share: bus, slot and function, in different PCI domains."""
    if port.pci:
        return tuple(re.split(r"[:.]", port.pci.lower())[-3:])
    match = re.search(r"(?:P\d+)?p(\d+)s(\d+)f(\d+)", port.device)
    return match.groups() if match else None


def _check_twins(fabric: Fabric, rails: Sequence[Rail], by_hand: bool) -> list[Finding]:
    """One QSFP port is two PCIe devices: both halves should be rails."""
    used = {rail.rdma for rail in rails}
    findings = []
    for port in fabric.ports:
        key = twin_key(port)
        twins = [p for p in fabric.ports if p.device in used and key is not None and twin_key(p) == key]
        if port.device in used or not twins:
            continue
        devs = [fabric.netdevs[n] for n in port.netdevs if n in fabric.netdevs]
        if port.active is False or any(d.carrier is False for d in devs):
            continue
        names = ", ".join(port.netdevs) or port.device
        summary = f"{names} is the other half of {twins[0].device}'s port and is not used: half the bandwidth"
        mapped = [
            str(g.value.ipv4_mapped) for g in port.gids if g.value and g.value.ipv4_mapped and g.is_roce_v2
        ]
        mend = (
            f"add {mapped[0]} to the node's fabric addresses"
            if mapped
            else f"set an address in a subnet of its own on {names} and add it to the node's fabric addresses"
        )
        if by_hand:
            mend += " (devices were chosen by hand)"
        findings.append(warn("fabric.half", summary, mend))
    return findings

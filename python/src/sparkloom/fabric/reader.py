"""Read the RDMA devices and interfaces of a machine from its `/sys` (or a saved tree)."""

from __future__ import annotations

import ipaddress
import re

from sparkloom.commands import capture_text
from sparkloom.fabric.addresses import Held, read_addresses
from sparkloom.fabric.model import Fabric, Gid, Netdev, RdmaPort
from sparkloom.sysroot import SysRoot

_IB = "sys/class/infiniband"
_NET = "sys/class/net"
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_IB_MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
IBV_DEVINFO = "commands/ibv_devinfo.txt"


def read_fabric(root: SysRoot) -> Fabric:
    """All RDMA ports and network interfaces; missing files become `None`, never an error."""
    addresses = read_addresses(root)
    netdevs = {
        name: _read_netdev(root, name, addresses.get(name, []))
        for name in root.names(_NET)
        if root.is_dir(f"{_NET}/{name}")  # `bonding_masters` is a file
    }
    for name, held in addresses.items():  # a tree may know an interface by its addresses alone
        netdevs.setdefault(name, Netdev(name, None, None, None, None, None, tuple(held)))
    devinfo = _active_mtus(root)
    ports = []
    for device in root.names(_IB):
        numbers = [int(n) for n in root.names(f"{_IB}/{device}/ports") if n.isdecimal()]
        ports += [_read_port(root, device, n, netdevs, devinfo) for n in numbers]
    return Fabric(tuple(ports), netdevs)


def _read_netdev(root: SysRoot, name: str, addresses: Held) -> Netdev:
    base = f"{_NET}/{name}"
    carrier = root.integer(f"{base}/carrier")
    speed = root.integer(f"{base}/speed")
    return Netdev(
        name=name,
        carrier=None if carrier is None else carrier != 0,
        operstate=root.text(f"{base}/operstate") or None,
        mtu=root.integer(f"{base}/mtu"),
        speed=speed if speed and speed > 0 else None,
        pci=_pci(root, base),
        addresses=tuple(addresses),
    )


def _pci(root: SysRoot, base: str) -> str | None:
    """The PCI function behind a class device: from the `device` link, or from `uevent`."""
    link = root.link(f"{base}/device") or ""
    if not _PCI.fullmatch(link):
        resolved = root.resolve(f"{base}/device")
        link = resolved.name if resolved is not None else ""
    if _PCI.fullmatch(link):
        return link
    slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", root.text(f"{base}/device/uevent") or "", re.MULTILINE)
    return slot[1] if slot else None


def _read_port(
    root: SysRoot, device: str, number: int, netdevs: dict[str, Netdev], devinfo: dict[tuple[str, int], int]
) -> RdmaPort:
    base = f"{_IB}/{device}"
    port = f"{base}/ports/{number}"
    pci = _pci(root, base)
    gids = tuple(_read_gids(root, port))
    linked = [
        *root.names(f"{base}/device/net"),
        *(n for n in netdevs if device in root.names(f"{_NET}/{n}/device/infiniband")),
        *(n for n, dev in netdevs.items() if pci is not None and dev.pci == pci),
        *(gid.ndev for gid in gids if gid.ndev),
    ]
    return RdmaPort(
        device=device,
        port=number,
        state=root.text(f"{port}/state") or None,
        phys_state=root.text(f"{port}/phys_state") or None,
        rate=root.text(f"{port}/rate") or None,
        active_mtu=_mtu(root.text(f"{port}/active_mtu")) or devinfo.get((device, number)),
        pci=pci,
        firmware=root.text(f"{base}/fw_ver") or None,
        netdevs=tuple(dict.fromkeys(linked)),
        gids=gids,
    )


def _read_gids(root: SysRoot, port: str) -> list[Gid]:
    found = []
    for name in root.names(f"{port}/gids"):
        if not name.isdecimal():
            continue
        text = root.text(f"{port}/gids/{name}")
        if text is None:
            continue
        try:
            value = ipaddress.IPv6Address(text)
        except ValueError:
            value = None
        found.append(
            Gid(
                index=int(name),
                text=text,
                value=value,
                type=root.text(f"{port}/gid_attrs/types/{name}") or None,
                ndev=root.text(f"{port}/gid_attrs/ndevs/{name}") or None,
            )
        )
    return sorted(found, key=lambda gid: gid.index)


def _mtu(text: str | None) -> int | None:
    """Bytes from `4096`, `4096 (5)` or the verbs code `5`."""
    number = re.match(r"\d{1,9}", text or "")
    if not number:
        return None
    value = int(number[0])
    return _IB_MTU.get(value, value)


def _active_mtus(root: SysRoot) -> dict[tuple[str, int], int]:
    """`active_mtu` by device and port from `ibv_devinfo`: the kernel has no file for it."""
    text = root.text(IBV_DEVINFO)
    if text is None and root.live and root.names(_IB):
        text = capture_text(["ibv_devinfo", "-v"])
    return parse_ibv_devinfo(text or "")


def parse_ibv_devinfo(text: str) -> dict[tuple[str, int], int]:
    """Parse `ibv_devinfo` into `{(device, port): active_mtu}`."""
    found: dict[tuple[str, int], int] = {}
    device, port = "", 1
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "hca_id":
            device, port = value, 1
        elif key == "port" and value.isdecimal():
            port = int(value)
        elif key == "active_mtu" and device and (mtu := _mtu(value)):
            found[device, port] = mtu
    return found

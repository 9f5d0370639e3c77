"""Which interface holds which address, from files that a tree may have.

`ip -j addr` output (saved by `sparkloom capture`) is exact. The kernel's own `fib_trie` names the local
IPv4 addresses but not their interface; the routing table's directly attached networks give that.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from sparkloom.errors import Exit, SparkloomError
from sparkloom.fabric.model import Address
from sparkloom.sysroot import SysRoot

Held = list[tuple[Address, int | None]]  # addresses of one interface with their prefix lengths
Addresses = dict[str, Held]

IP_ADDR_FILES = ("commands/ip-addr.json", "ip-addr.json", "proc/net/ip-addr.json", "run/ip-addr.json")


def read_addresses(root: SysRoot) -> Addresses:
    """Addresses and prefix lengths by interface name; empty when the tree has no such file."""
    for name in IP_ADDR_FILES:
        found = parse_ip_addr(root.json(name))
        if found:
            return found
    return parse_fib(root.text("proc/net/fib_trie") or "", root.text("proc/net/route") or "")


def parse_ip_addr(value: Any) -> Addresses:
    """Parse the JSON of `ip -j addr`; whatever is not of that form is passed over."""
    found: Addresses = {}
    for interface in value if isinstance(value, list) else []:
        if not isinstance(interface, dict) or not isinstance(interface.get("ifname"), str):
            continue
        infos = interface.get("addr_info")
        for info in infos if isinstance(infos, list) else []:
            if not isinstance(info, dict):
                continue
            try:
                address = ipaddress.ip_address(str(info.get("local")))
            except ValueError:
                continue
            prefix = info.get("prefixlen")
            found.setdefault(interface["ifname"], []).append(
                (address, prefix if isinstance(prefix, int) else None)
            )
    return found


def parse_fib(fib_trie: str, route: str) -> Addresses:
    """Join the local addresses of `fib_trie` with the attached networks of `/proc/net/route`."""
    networks: list[tuple[ipaddress.IPv4Network, str]] = []
    for line in route.splitlines()[1:]:
        words = line.split()
        try:
            destination, gateway, mask = (_little_endian(words[i]) for i in (1, 2, 7))
            network = ipaddress.IPv4Network((destination, str(ipaddress.IPv4Address(mask))))
        except (IndexError, ValueError):
            continue
        if gateway == 0 and network.prefixlen:
            networks.append((network, words[0]))
    found: Addresses = {}
    for text in dict.fromkeys(re.findall(r"\|-- (\S+)\s+/32 host LOCAL", fib_trie)):
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            continue
        longest = max((n.prefixlen for n, _ in networks if address in n), default=None)
        for network, name in networks:  # halves in one subnet can not be told apart: both may hold it
            if address in network and network.prefixlen == longest:
                found.setdefault(name, []).append((address, longest))
    return found


def _little_endian(word: str) -> int:
    return int.from_bytes(bytes.fromhex(word)[:4], "little")


def parse_addresses(parts: Sequence[str], field: str = "--address") -> list[Address]:
    """Fabric addresses from words, each an address or several with commas between.

    Raises:
        SparkloomError: a part is no IP address, is given twice or can not be a fabric address.
    """
    found: list[Address] = []
    for part in (word.strip() for text in parts for word in text.split(",")):
        try:
            address = ipaddress.ip_address(part)
        except ValueError:
            raise _wrong("not an IP address", field, part, "write 10.0.0.1 or 10.0.0.1,10.0.1.1") from None
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            mend = "give the address of a ConnectX-7 interface"
            raise _wrong("this address can not be a fabric address", field, part, mend)
        if address in found:
            raise _wrong("the address is given twice", field, part, "each half has its own address")
        found.append(address)
    return found


def _wrong(summary: str, field: str, value: str, mend: str) -> SparkloomError:
    return SparkloomError(summary, field=field, value=value, mend=mend, code=Exit.USAGE)

"""What the fabric reader finds and what the rail chooser decides: plain values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table (`gids/N` with its `gid_attrs`)."""

    index: int
    text: str  # as the kernel prints it, eight groups of four hex digits
    value: IPv6Address | None  # None: not a GID at all
    type: str | None  # "RoCE v2", "IB/RoCE v1", None: unreadable
    ndev: str | None  # interface that the entry belongs to

    @property
    def is_zero(self) -> bool:
        """An empty slot."""
        return self.value is not None and int(self.value) == 0

    @property
    def is_roce_v2(self) -> bool:
        """Routable RoCE over UDP, the only kind that NCCL can use between these nodes."""
        return (self.type or "").strip().casefold() == "roce v2"

    def maps(self, address: Address) -> bool:
        """Whether the entry is `address`: an IPv4 one as `::ffff:a.b.c.d`, an IPv6 one as itself."""
        if self.value is None:
            return False
        return self.value == address or (
            isinstance(address, IPv4Address) and self.value.ipv4_mapped == address
        )


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of one RDMA device."""

    device: str
    port: int
    state: str | None  # "4: ACTIVE"
    phys_state: str | None  # "5: LinkUp"
    rate: str | None  # "200 Gb/sec (4X HDR)"
    active_mtu: int | None  # bytes of payload per RDMA packet
    pci: str | None  # "0000:01:00.0"
    firmware: str | None
    netdevs: tuple[str, ...]  # interfaces on the same PCI function
    gids: tuple[Gid, ...] = field(repr=False)

    @property
    def active(self) -> bool | None:
        """Whether the port's state is ACTIVE; `None` when the tree does not say."""
        return None if self.state is None else "ACTIVE" in self.state.upper()


@dataclass(frozen=True, slots=True)
class Netdev:
    """One network interface."""

    name: str
    carrier: bool | None
    operstate: str | None
    mtu: int | None
    speed: int | None  # Mb/s
    pci: str | None
    addresses: tuple[tuple[Address, int | None], ...] = ()  # address and prefix length

    def holds(self, address: Address) -> bool:
        """Whether `address` is set on this interface."""
        return any(have == address for have, _ in self.addresses)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Everything that one machine's tree says about its network and RDMA devices."""

    ports: tuple[RdmaPort, ...]
    netdevs: dict[str, Netdev]


@dataclass(frozen=True, slots=True)
class Rail:
    """One path between the nodes: an RDMA device, its interface and the GID entry to use."""

    netdev: str | None
    rdma: str
    address: str
    gid_index: int | None
    gid: str | None
    gid_type: str | None
    mtu: int | None
    active_mtu: int | None
    carrier: bool | None
    rate: str | None

    def as_dict(self) -> dict[str, Any]:
        """The rail as `fabric show --format json` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}

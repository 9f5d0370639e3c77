"""The fabric part of preflight: this node's rails as the cluster file wants them."""

from __future__ import annotations

from sparkloom.fabric import Rail, choose_rails, parse_addresses, read_fabric
from sparkloom.findings import Finding, fail, ok
from sparkloom.preflight.context import Context


def rails_of(ctx: Context) -> tuple[list[Rail], list[Finding]]:
    """The rails of this node and the findings about them."""
    wanted = ctx.node.fabric
    addresses = parse_addresses([str(a) for a in wanted.addresses], "nodes[].fabric.addresses")
    devices = [str(d) for d in wanted.rdma_devices or ()]
    return choose_rails(read_fabric(ctx.root), addresses, devices, mtu=ctx.cluster.fabric.mtu)


def check_fabric(ctx: Context) -> list[Finding]:
    """Rails, GID entries, link and MTU; interfaces that the file names must be the ones that are found."""
    if ctx.cluster.world == 1:
        return [ok("fabric", "not needed: one node")]
    if not ctx.on_gpu or not ctx.cluster.fabric.require_rdma:
        return [ok("fabric", "not checked: this cluster does not require RDMA")]
    rails, findings = rails_of(ctx)
    names = ctx.node.fabric.interfaces or []
    for rail, name in zip(rails, names, strict=False):
        if rail.netdev is not None and rail.netdev != name:
            mend = f"set nodes[].fabric.interfaces to {rail.netdev}, or move the address"
            summary = f"{rail.address} is on {rail.netdev}, the cluster file says {name}"
            findings.append(fail("fabric.interface", summary, mend))
    return findings

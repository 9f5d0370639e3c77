"""The NCCL environment of one rank, from the rails of its own node."""

from __future__ import annotations

from collections.abc import Sequence

from sparkloom.fabric.model import Rail
from sparkloom.findings import Finding, warn


def nccl_environment(rails: Sequence[Rail]) -> dict[str, str]:
    """Variables that make NCCL use exactly these rails, or fail.

    NCCL has one GID index for all devices of a rank. When the devices need different ones, the index is left
    out and NCCL selects per device itself, restricted to RoCE v2 and IPv4.
    `NCCL_NET=IB` turns a silent fall-back to TCP into an error.
    """
    usable = [rail for rail in rails if rail.gid_index is not None]
    if not usable:
        return {}
    env = {
        "NCCL_NET": "IB",
        "NCCL_IB_DISABLE": "0",
        # `=` asks for exactly this name: without it NCCL matches by prefix.
        "NCCL_IB_HCA": "=" + ",".join(rail.rdma for rail in usable),
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET6" if ":" in usable[0].address else "AF_INET",
        "VLLM_HOST_IP": usable[0].address,
    }
    indexes = {rail.gid_index for rail in usable}
    if len(indexes) == 1:
        env["NCCL_IB_GID_INDEX"] = str(usable[0].gid_index)
    if usable[0].netdev:
        env |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), usable[0].netdev)
        env["NCCL_SOCKET_IFNAME"] = "=" + usable[0].netdev
    return dict(sorted(env.items()))


def check_environment(given: dict[str, str], wanted: dict[str, str]) -> list[Finding]:
    """Say where a variable that somebody set by hand would be replaced: it must not happen silently."""
    findings = []
    for name, value in wanted.items():
        old = given.get(name)
        if old is not None and old.lstrip("=") != value.lstrip("="):
            findings.append(
                warn(
                    "fabric.environment",
                    f"{name}={old} is set by hand, detected is {value}",
                    f"unset {name}, or name the device in the cluster file if {old} is meant",
                )
            )
    return findings

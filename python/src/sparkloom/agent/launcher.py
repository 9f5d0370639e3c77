"""From cluster file and generation to the command of this node's rank, with everything resolved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from sparkloom.agent.settings import api_key
from sparkloom.cluster import Cluster
from sparkloom.cluster.render import render
from sparkloom.errors import Exit, SparkloomError
from sparkloom.fabric import Fabric, choose_rails, parse_addresses, read_fabric
from sparkloom.fabric.model import Address
from sparkloom.findings import Level
from sparkloom.sysroot import SysRoot

# What a user's shell or the service manager sets must not reach a rank: the cluster file decides.
_FOREIGN = (
    "VLLM_",
    "NCCL_",
    "GLOO_",
    "TP_SOCKET_",
    "UCX_",
    "NOTIFY_",
    "WATCHDOG_",
    "LISTEN_",
    "CREDENTIALS_",
)


@dataclass(frozen=True)
class Launch:
    """Program, flags and whole environment of a rank. The environment holds secrets: never log it."""

    argv: tuple[str, ...]
    env: dict[str, str]


def _device(fabric: Fabric, address: Address) -> str:
    """The device that holds an address; loopback holds all of 127.0.0.0/8."""
    held = (d.name for d in fabric.netdevs.values() if d.holds(address))
    return next(held, "lo" if address.is_loopback else "")


def prepare(
    cluster: Cluster,
    node: str,
    generation: int,
    root: SysRoot,
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """The launch of this node's rank.

    Raises:
        SparkloomError: the fabric lacks an address, port or GID that the rank needs; a key file is missing.
    """
    me = next(n for n in cluster.nodes if n.name == node)
    fabric = read_fabric(root)
    if cluster.engine.platform == "cuda":
        addresses = parse_addresses([str(a) for a in me.fabric.addresses])
        rails, findings = choose_rails(fabric, addresses, me.fabric.rdma_devices or ())
        if failed := [f for f in findings if f.level is Level.fail]:
            raise SparkloomError(
                failed[0].summary, detail=failed[0].detail, mend=failed[0].mend, code=Exit.RESOURCE
            )
        rendered = render(cluster, node, rails=rails, generation=generation)
    else:
        addresses = [ip_address(str(a)) for a in me.fabric.addresses]  # loopback may stand in for a fabric
        devices = [_device(fabric, a) for a in addresses]
        devices = [d for d in devices if d]
        if len(devices) != len(addresses):
            raise SparkloomError(
                "no network device holds this node's fabric address",
                field=f"nodes[{node}].fabric.addresses",
                value=", ".join(map(str, addresses)),
                mend="set the address on the device, or correct the cluster file",
                code=Exit.RESOURCE,
            )
        rendered = render(cluster, node, interfaces=devices, generation=generation)
    if rendered.unresolved:
        name, why = next(iter(rendered.unresolved.items()))
        raise SparkloomError(f"{name} cannot be decided: {why}", code=Exit.RESOURCE)
    base = os.environ if environ is None else environ
    env = {k: v for k, v in base.items() if not k.startswith(_FOREIGN)}
    env |= rendered.env
    if "VLLM_API_KEY" in rendered.secret_files and (key := api_key(cluster)):
        env["VLLM_API_KEY"] = key
    env["SPARKLOOM_GENERATION"] = str(generation)
    return Launch(rendered.argv, env)

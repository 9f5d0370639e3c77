"""The machines: names, roles, fabric addresses, and what belongs to the fabric as a whole."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from sparkloom.cluster.base import Ipv4, Name, NetDevice, Port, RdmaDevice, Section


class Role(StrEnum):
    """What a node does in the pair."""

    head = "head"
    worker = "worker"


class NodeFabric(Section):
    """How this node meets its peers: one address per rail (one rail is one half of a QSFP port)."""

    addresses: Annotated[list[Ipv4], Field(min_length=1, max_length=8)]
    """IPv4 address of this node on each rail. Rail i of every node must be in one subnet. Rendezvous,
    gloo and vLLM's own messages use the first."""
    interfaces: Annotated[list[NetDevice], Field(min_length=1, max_length=8)] | None = None
    """Network devices, one per address. null: found at each start as the devices that hold the addresses."""
    rdma_devices: Annotated[list[RdmaDevice], Field(min_length=1, max_length=8)] | None = None
    """RDMA devices, one per address (NCCL_IB_HCA). null: found at each start as the devices behind the
    interfaces."""


class Node(Section):
    """One machine of the cluster."""

    name: Name
    """Short name, unique in the file: letters, digits and dashes. Commands take it as `--node NAME`."""
    role: Role
    """`head` (rank 0, serves the API) or `worker`. Exactly one head."""
    fabric: NodeFabric
    """Fabric addresses of this node."""
    agent_port: Port | None = None
    """Port of this node's agent on the first fabric address. null: `agent.port`."""
    status_port: Port | None = None
    """Port of this node's status page on loopback. null: `agent.status_port`."""


class Fabric(Section):
    """What the links between the nodes have in common."""

    prefix_length: Annotated[int, Field(ge=8, le=31)] = 24
    """Length of each rail's subnet in bits."""
    mtu: Annotated[int, Field(ge=1280, le=9978)] = 9000
    """MTU of every fabric interface in bytes. Both ends must have it; 1500 halves the bandwidth."""
    require_rdma: bool = True
    """Refuse to serve when NCCL would fall back to TCP (NCCL_NET=IB). Has no meaning on the CPU platform."""
    nccl_debug: Annotated[str, Field(pattern="^(VERSION|WARN|INFO|TRACE)$")] = "INFO"
    """NCCL_DEBUG. INFO is what lets the agent see which transport NCCL chose."""
    nccl_channels: Annotated[int, Field(ge=1, le=64)] | None = None
    """NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS. null: NCCL decides. 4 helped one published kit and hurt
    another."""
    nccl_buffer_bytes: Annotated[int, Field(ge=65_536, le=67_108_864)] | None = None
    """NCCL_BUFFSIZE. null: NCCL's default of 4 MiB; 1048576 saves memory."""
    nccl_cross_nic: bool = True
    """NCCL_CROSS_NIC: let one ring use different rails on the two nodes."""
    minimum_nccl: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "2.29.3"
    """Lowest NCCL version that may start. Versions before 2.29.3 can deadlock on aarch64."""


class Rendezvous(Section):
    """Where the ranks meet."""

    master_port: Port = 29501
    """Port of the head's TCP store on its first fabric address (--master-port). It has no authentication:
    fabric only."""
    rpc_port_base: Port | None = None
    """VLLM_PORT: first of the ports that vLLM's own messages use. null: random high ports."""
    generation_ports: Annotated[int, Field(ge=1, le=256)] = 1
    """Each new launch may use the next of this many master ports, so that a rank of an old launch meets
    nobody."""

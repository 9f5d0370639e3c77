"""The RoCE fabric: find the rails of a node, choose their GID entries, compare two nodes.

`read_fabric` does the reading (below any root), the rest decides on plain values.
"""

from sparkloom.fabric.addresses import parse_addresses
from sparkloom.fabric.environment import nccl_environment
from sparkloom.fabric.model import Fabric, Gid, Netdev, Rail, RdmaPort
from sparkloom.fabric.peers import compare, rails_from_report
from sparkloom.fabric.rails import choose_rails, gid_table, rdma_mtu
from sparkloom.fabric.reader import read_fabric

__all__ = [
    "Fabric",
    "Gid",
    "Netdev",
    "Rail",
    "RdmaPort",
    "choose_rails",
    "compare",
    "gid_table",
    "nccl_environment",
    "parse_addresses",
    "rails_from_report",
    "rdma_mtu",
    "read_fabric",
]

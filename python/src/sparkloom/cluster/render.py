"""Flags and environment of one rank. Nothing else in the project decides them.

Head and worker differ only in `PER_NODE_FLAGS` and `PER_NODE_ENV`; the digest covers everything else, so two
nodes that render the same file have the same digest. Secrets are named by file, never by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkloom.cluster.digest import sha256
from sparkloom.cluster.flags import engine_flags, shared_flags
from sparkloom.cluster.nodes import Node, Role
from sparkloom.cluster.rank_env import node_env, shared_env
from sparkloom.cluster.settings import settings
from sparkloom.cluster.types import Cluster
from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from sparkloom.fabric.model import Rail

PER_NODE_FLAGS = frozenset({"--node-rank", "--headless", "--host", "--port"})
"""Flags that may differ between ranks."""
PER_NODE_ENV = frozenset(
    {
        "VLLM_HOST_IP",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
    }
)
"""Variables that may differ between ranks."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One rank, ready to start.

    Args:
        node, rank: which one.
        argv: program and flags.
        env: variables to add to a clean environment.
        secret_files: variable -> file whose first line is its value, read at launch only.
        unresolved: variable -> why it is not in `env` yet; the agent fills it from this node's fabric.
        digest: hex SHA-256 of everything that all ranks share.
    """

    node: str
    rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    secret_files: dict[str, str]
    unresolved: dict[str, str]
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """The rank as `sparkloom render --format json` prints it."""
        return {
            "node": self.node,
            "rank": self.rank,
            "argv": list(self.argv),
            "env": self.env,
            "secret_files": self.secret_files,
            "unresolved": self.unresolved,
            "digest": self.digest,
        }


def node_named(cluster: Cluster, name: str) -> tuple[int, Node]:
    """Rank and node called `name`, or with the role `name` where only one has it.

    Errors: USAGE when the file has no such node.
    """
    if (found := cluster.find(name)) is not None:
        return cluster.ranks.index(found), found
    raise SparkloomError(
        f"no node {name!r} in the cluster file",
        field="--node",
        value=name,
        mend=f"use one of {', '.join(node.name for node in cluster.ranks)}",
        code=Exit.USAGE,
    )


def render(
    cluster: Cluster,
    node_name: str,
    *,
    rails: Sequence[Rail] | None = None,
    interfaces: Sequence[str] | None = None,
    generation: int = 0,
) -> Rendered:
    """Flags and environment of the rank on `node_name`.

    Args:
        cluster: a checked cluster file.
        node_name: name of the node.
        rails: this node's rails with RDMA device, interface and GID entry, from `sparkloom.fabric`. Without
            them the variables that need them are listed in `unresolved`.
        interfaces: network devices of the fabric addresses, where there is no RDMA (CPU platform).
        generation: launch number; picks the master port among `rendezvous.generation_ports`.

    Errors: USAGE for an unknown node, INPUT for rails that contradict the file.
    """
    rank, node = node_named(cluster, node_name)
    final = settings(cluster)
    shared = shared_flags(cluster, final)
    program = list(cluster.engine.command or ("python", "-m", "sparkloom.vllm.serve"))
    argv = [*program, cluster.model.path, *shared]
    argv += engine_flags(cluster, rank, generation)
    argv += cluster.engine.extra_args
    common = shared_env(cluster, final)
    own, unresolved = node_env(cluster, node, rails, interfaces)
    secrets: dict[str, str] = {}
    if node.role is Role.head and cluster.api.key_file is not None:
        secrets["VLLM_API_KEY"] = cluster.api.key_file
    rendered_env = common | own | cluster.engine.extra_env
    parts = shared_part(argv, rendered_env)
    return Rendered(
        node=node.name,
        rank=rank,
        argv=tuple(argv),
        env=dict(sorted(rendered_env.items())),
        secret_files=secrets,
        unresolved=unresolved,
        digest=sha256(parts),
    )


def shared_part(argv: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    """What every rank must have equal: argv and environment without the per-node entries."""
    kept: list[str] = []
    skip = False
    for i, word in enumerate(argv):
        if skip:
            skip = False
        elif word in PER_NODE_FLAGS:
            following = argv[i + 1] if i + 1 < len(argv) else "--"
            skip = word != "--headless" and not following.startswith("--")
        else:
            kept.append(word)
    return {"argv": kept, "env": {k: v for k, v in sorted(env.items()) if k not in PER_NODE_ENV}}

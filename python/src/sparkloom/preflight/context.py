"""What every check gets: the cluster file, the node, and a tree to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkloom.cluster import Cluster
from sparkloom.cluster.nodes import Node, Role
from sparkloom.cluster.operation import Platform, Runtime
from sparkloom.commands import capture_text
from sparkloom.errors import Exit, SparkloomError
from sparkloom.meminfo import parse_meminfo
from sparkloom.sysroot import SysRoot

COMMANDS = "commands"
"""Folder of a saved tree with the output of programs that the machine was asked."""


@dataclass(frozen=True, slots=True)
class Context:
    """One preflight: a node of a cluster, seen through a tree."""

    cluster: Cluster
    node: Node
    root: SysRoot
    _answers: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_head(self) -> bool:
        """Whether this node is rank 0."""
        return self.node.role is Role.head

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks compute on CUDA."""
        return self.cluster.engine.platform is Platform.cuda

    @property
    def in_container(self) -> bool:
        """Whether the rank runs in a container."""
        return self.cluster.engine.runtime is Runtime.oci

    def command(self, name: str, argv: Sequence[str], timeout_s: float = 10.0) -> str | None:
        """What a program says: from the saved tree's `commands/NAME`, else asked on the running machine."""
        saved = self.root.text(f"{COMMANDS}/{name}")
        if saved is not None or not self.root.live:
            return saved
        if name not in self._answers:
            self._answers[name] = capture_text(argv, timeout_s=timeout_s)
        return self._answers[name]

    def meminfo(self) -> dict[str, int] | None:
        """`/proc/meminfo` in bytes, or `None` when the tree has none."""
        text = self.root.text("proc/meminfo")
        return parse_meminfo(text, self.root.path / "proc/meminfo") if text else None


def context(cluster: Cluster, node: str, root: SysRoot) -> Context:
    """The context of the node called `node`.

    Raises:
        SparkloomError: the cluster has no such node.
    """
    for candidate in cluster.nodes:
        if candidate.name == node:
            return Context(cluster, candidate, root)
    names = ", ".join(n.name for n in cluster.nodes)
    raise SparkloomError(
        "the cluster has no such node",
        field="--node",
        value=node,
        mend=f"use one of {names}",
        code=Exit.USAGE,
    )


def unknown(check: str, what: str, source: str, root: SysRoot) -> str:
    """The sentence for something that the tree does not tell."""
    return f"{what} is not known: {source} {'cannot be read here' if root.live else 'is not in this tree'}"

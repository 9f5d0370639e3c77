"""The cluster file as a whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparkloom.cluster.ablit import Ablit
from sparkloom.cluster.base import Name, Section
from sparkloom.cluster.model import Drafter, Model
from sparkloom.cluster.nodes import Fabric, Node, Rendezvous, Role
from sparkloom.cluster.operation import (
    Agent,
    Api,
    Deadlines,
    Engine,
    Liveness,
    Memory,
    Probe,
    Restart,
)
from sparkloom.cluster.profiles import ProfileName
from sparkloom.cluster.serving import Patches, Serving, Vision


class Cluster(Section):
    """One model served by one group of nodes. Every rank, unit and check is derived from this file."""

    schema_version: Literal[1] = 1
    """Version of this format."""
    name: Name = "sparkloom"
    """Name of the cluster in logs, metrics and file names."""
    profile: ProfileName = ProfileName.interactive
    """Named set of serving values. A value set by hand in this file wins over the profile's."""
    nodes: Annotated[list[Node], Field(min_length=1, max_length=8)]
    """The machines: one head, any number of workers. Ranks follow the order here, the head first."""
    fabric: Fabric = Field(default_factory=Fabric)
    """What the links have in common."""
    rendezvous: Rendezvous = Field(default_factory=Rendezvous)
    """Where the ranks meet."""
    model: Model = Field(default_factory=Model)
    """The checkpoint."""
    drafter: Drafter = Field(default_factory=Drafter)
    """Speculative decoding."""
    serving: Serving = Field(default_factory=Serving)
    """Limits, cache and parsers."""
    vision: Vision = Field(default_factory=Vision)
    """Images and videos."""
    patches: Patches = Field(default_factory=Patches)
    """Switches of this project's changes to vLLM."""
    ablit: Ablit = Field(default_factory=Ablit)
    """Weight edits at load; off by default."""
    memory: Memory = Field(default_factory=Memory)
    """Memory policy and the estimates of the plan."""
    api: Api = Field(default_factory=Api)
    """The OpenAI-compatible API."""
    agent: Agent = Field(default_factory=Agent)
    """The supervisor on every node."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """Time limits of a start and of a step."""
    restart: Restart = Field(default_factory=Restart)
    """What happens after the pair broke."""
    liveness: Liveness = Field(default_factory=Liveness)
    """How a hang is told from hard work."""
    probe: Probe = Field(default_factory=Probe)
    """Readiness by checked answers."""
    engine: Engine = Field(default_factory=Engine)
    """The vLLM process."""

    @property
    def ranks(self) -> list[Node]:
        """Nodes in rank order: the head, then the workers as the file lists them."""
        return sorted(self.nodes, key=lambda node: node.role is not Role.head)

    @property
    def head(self) -> Node:
        """The node of rank 0."""
        return self.ranks[0]

    def find(self, name: str) -> Node | None:
        """The node called `name`. `head` and, with one worker, `worker` also name a node by its role."""
        for node in self.nodes:
            if node.name == name:
                return node
        by_role = [node for node in self.nodes if node.role.value == name]
        return by_role[0] if len(by_role) == 1 else None

    @property
    def world(self) -> int:
        """Number of ranks, which is the tensor-parallel size."""
        return len(self.nodes)

    def agent_port(self, node: Node) -> int:
        """Port of `node`'s agent."""
        return node.agent_port or self.agent.port

    def status_port(self, node: Node) -> int:
        """Port of `node`'s status page."""
        return node.status_port or self.agent.status_port

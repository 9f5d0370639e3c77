"""Rules between fields: what each value alone allows and the combination does not.

Pure functions over a `Cluster`; each yields `Problem`s. `load` reports all of them at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from sparkloom.cluster.ablit import Method
from sparkloom.cluster.model import DrafterKind
from sparkloom.cluster.nodes import Role
from sparkloom.cluster.operation import Exposure, Platform, Runtime
from sparkloom.cluster.types import Cluster


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a cluster file.

    Args:
        field: JSON path, for example `nodes[1].fabric.addresses[0]`.
        value: the offending value.
        problem: what is wrong with it.
        mend: what to write instead.
    """

    field: str
    value: Any
    problem: str
    mend: str

    def as_dict(self) -> dict[str, Any]:
        """The problem as JSON; values that JSON lacks become text."""
        plain = self.value is None or isinstance(self.value, (str, int, float, bool, list, dict))
        return {
            "field": self.field,
            "value": self.value if plain else repr(self.value),
            "problem": self.problem,
            "mend": self.mend,
        }


def check(cluster: Cluster) -> list[Problem]:
    """All problems of a structurally valid cluster, in file order."""
    found: list[Problem] = []
    for rule in (_nodes, _rails, _ports, _drafter, _ablit, _api, _agent, _engine):
        found += rule(cluster)
    from sparkloom.cluster.forbidden import forbidden

    return found + forbidden(cluster)


def _nodes(cluster: Cluster) -> Iterator[Problem]:
    heads = [i for i, node in enumerate(cluster.nodes) if node.role is Role.head]
    if not heads:
        yield Problem("nodes", None, "no node has the role head", 'give one node "role": "head"')
    for i in heads[1:]:
        first = cluster.nodes[heads[0]].name
        yield Problem(
            f"nodes[{i}].role", "head", f"a second head beside {first!r}", 'set "role": "worker" here'
        )
    names = Counter(node.name for node in cluster.nodes)
    for i, node in enumerate(cluster.nodes):
        if names[node.name] > 1:
            yield Problem(f"nodes[{i}].name", node.name, "two nodes have this name", "give each its own name")


def _rails(cluster: Cluster) -> Iterator[Problem]:
    rails = len(cluster.nodes[0].fabric.addresses)
    seen: dict[str, str] = {}
    for i, node in enumerate(cluster.nodes):
        path = f"nodes[{i}].fabric"
        addresses = node.fabric.addresses
        if len(addresses) != rails:
            yield Problem(
                f"{path}.addresses",
                addresses,
                f"{len(addresses)} rails here, {rails} on {cluster.nodes[0].name!r}",
                "give every node one address per rail, in the same order",
            )
        for name, devices in (
            ("interfaces", node.fabric.interfaces),
            ("rdma_devices", node.fabric.rdma_devices),
        ):
            if devices is not None and len(devices) != len(addresses):
                yield Problem(
                    f"{path}.{name}",
                    devices,
                    f"{len(devices)} devices for {len(addresses)} addresses",
                    "name one device per address, or leave the field out to have them found",
                )
        for j, address in enumerate(addresses):
            where = f"{path}.addresses[{j}]"
            ip = IPv4Address(address)
            if address in seen:
                yield Problem(
                    where, address, f"already used at {seen[address]}", "give every rail its own address"
                )
            seen.setdefault(address, where)
            if ip.is_unspecified or ip.is_multicast or ip == IPv4Address("255.255.255.255"):
                yield Problem(
                    where, address, "not an address of one interface", "use a unicast fabric address"
                )
            elif ip.is_loopback and cluster.engine.platform is Platform.cuda and cluster.world > 1:
                yield Problem(
                    where,
                    address,
                    "a loopback address reaches no other node",
                    'use the fabric address (loopback is for "engine": {"platform": "cpu"})',
                )
            if i and j < rails:
                yield from _same_subnet(cluster, where, address, j)


def _same_subnet(cluster: Cluster, where: str, address: str, rail: int) -> Iterator[Problem]:
    first = cluster.nodes[0]
    reference = first.fabric.addresses[rail]
    prefix = cluster.fabric.prefix_length
    ours = IPv4Interface(f"{address}/{prefix}").network
    theirs = IPv4Interface(f"{reference}/{prefix}").network
    if ours != theirs and not IPv4Address(address).is_loopback:
        yield Problem(
            where,
            address,
            f"rail {rail} is {theirs} on {first.name!r}, this address is outside",
            f"use an address of {theirs}, or correct fabric.prefix_length",
        )


def _ports(cluster: Cluster) -> Iterator[Problem]:
    """No two listeners of one node on one port. All addresses count as one: 0.0.0.0 takes them all."""
    for i, node in enumerate(cluster.nodes):
        users: dict[int, str] = {}
        agent = f"nodes[{i}].agent_port" if node.agent_port else "agent.port"
        status = f"nodes[{i}].status_port" if node.status_port else "agent.status_port"
        wanted = [(agent, cluster.agent_port(node)), (status, cluster.status_port(node))]
        if node.role is Role.head:
            first = cluster.rendezvous.master_port
            wanted.append(("api.port", cluster.api.port))
            if cluster.world > 1:
                wanted += [
                    ("rendezvous.master_port", first + k) for k in range(cluster.rendezvous.generation_ports)
                ]
        for where, port in wanted:
            if port > 65535:
                yield Problem(
                    where, port, "beyond the last port 65535", "choose a lower first port or fewer of them"
                )
            if port in users:
                yield Problem(
                    where, port, f"taken by {users[port]} on {node.name!r}", "choose different ports"
                )
            users.setdefault(port, where)


def _drafter(cluster: Cluster) -> Iterator[Problem]:
    drafter = cluster.drafter
    if drafter.kind is DrafterKind.dflash2 and not drafter.accept_non_commercial_licence:
        yield Problem(
            "drafter.accept_non_commercial_licence",
            False,
            "the DFlash2 weights are CC BY-NC-ND 4.0: non-commercial use only, no derivatives",
            'set it to true if your use is non-commercial, or choose "kind": "mtp"',
        )


def _ablit(cluster: Cluster) -> Iterator[Problem]:
    ablit = cluster.ablit
    if ablit.method is Method.none:
        return
    if not ablit.accept_behaviour_change:
        yield Problem(
            "ablit.accept_behaviour_change",
            False,
            "edited weights answer differently; quality and acceptance must be measured again",
            'set it to true if that is what you want, or "method" to "none"',
        )
    for field, example in (("donor_repo", '"OWNER/NAME"'), ("donor_revision", "all 40 digits of a commit")):
        if getattr(ablit, field) is None:
            yield Problem(
                f"ablit.{field}", None, f"the method {ablit.method.value} needs a donor", f"give {example}"
            )
    if ablit.last_layer < ablit.first_layer:
        yield Problem(
            "ablit.last_layer",
            ablit.last_layer,
            f"before first_layer ({ablit.first_layer}): no layer would be edited",
            "give the last layer of the range, itself included",
        )
    if ablit.least_change >= ablit.most_change:
        yield Problem(
            "ablit.least_change",
            ablit.least_change,
            f"not below most_change ({ablit.most_change:g}): no change would be believed",
            "give a smaller bound",
        )


def _api(cluster: Cluster) -> Iterator[Problem]:
    api = cluster.api
    if IPv4Address(api.host).is_loopback:
        return
    if api.exposure is not Exposure.network:
        yield Problem(
            "api.host",
            api.host,
            "the API would be reachable from the network",
            'bind 127.0.0.1 behind a gateway, or say "exposure": "network" and give a key_file',
        )
    if api.key_file is None:
        yield Problem(
            "api.key_file",
            None,
            f"the API on {api.host} would answer without a key",
            'name a file with the key, for example "/etc/sparkloom/api.key"',
        )


def _agent(cluster: Cluster) -> Iterator[Problem]:
    agent = cluster.agent
    if agent.heartbeat_seconds * 3 > agent.lease_seconds:
        yield Problem(
            "agent.heartbeat_seconds",
            agent.heartbeat_seconds,
            f"a lease of {agent.lease_seconds:g} s would be lost by one late message",
            f"use at most {agent.lease_seconds / 3:g}, or a longer lease",
        )
    for path, key in (("api.key_file", cluster.api.key_file), ("agent.key_file", agent.key_file)):
        if key is not None and key.startswith("/nix/store/"):
            yield Problem(
                path,
                key,
                "everybody can read the Nix store",
                "keep the key in a file that only root reads",
            )
    restart = cluster.restart
    if restart.backoff_first_seconds > restart.backoff_max_seconds:
        yield Problem(
            "restart.backoff_first_seconds",
            restart.backoff_first_seconds,
            f"longer than backoff_max_seconds ({restart.backoff_max_seconds:g})",
            "make the first wait the shorter one",
        )


def _engine(cluster: Cluster) -> Iterator[Problem]:
    engine = cluster.engine
    if engine.runtime is Runtime.oci and engine.image is None:
        yield Problem(
            "engine.image", None, "the oci runtime needs an image", "give it by digest: NAME@sha256:..."
        )

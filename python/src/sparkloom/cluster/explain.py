"""Every final value with its origin, the nodes' fabric included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sparkloom.cluster.settings import Origin, Sourced, sourced
from sparkloom.cluster.types import Cluster
from sparkloom.errors import SparkloomError


def explanations(cluster: Cluster, fabric: Mapping[str, Path] | None = None) -> dict[str, Sourced]:
    """Path -> final value with origin; values of the nodes' fabric count as detected.

    Args:
        cluster: a checked cluster file.
        fabric: node name -> saved `fabric show --format json`.
    """
    found = {
        path: Sourced(_plain(item.value), item.origin, item.note) for path, item in sourced(cluster).items()
    }
    for i, node in enumerate(cluster.nodes):
        where = f"nodes[{i}]"
        found[f"{where}.name"] = Sourced(node.name, Origin.file)
        found[f"{where}.role"] = Sourced(node.role.value, Origin.file)
        found[f"{where}.agent_port"] = _or_shared(node.agent_port, cluster.agent.port, "agent.port")
        found[f"{where}.status_port"] = _or_shared(
            node.status_port, cluster.agent.status_port, "agent.status_port"
        )
        found[f"{where}.fabric.addresses"] = Sourced(node.fabric.addresses, Origin.file)
        rails = _rails(fabric[node.name]) if fabric and node.name in fabric else None
        for field, key in (("interfaces", "netdev"), ("rdma_devices", "rdma")):
            found[f"{where}.fabric.{field}"] = _fabric(getattr(node.fabric, field), rails, key)
        found[f"{where}.fabric.gid_index"] = _fabric(None, rails, "gid_index")
    return found


def _plain(value: object) -> object:
    """Enums as their text, sections' lists as they are."""
    return json.loads(json.dumps(value, default=str))


def _or_shared(own: int | None, shared: int, name: str) -> Sourced:
    if own is not None:
        return Sourced(own, Origin.file)
    return Sourced(shared, Origin.model_default, f"from {name}")


def _fabric(own: list[str] | None, rails: list[dict[str, object]] | None, key: str) -> Sourced:
    if own is not None:
        return Sourced(own, Origin.file)
    if rails is None:
        return Sourced(None, Origin.detected, "read on the node at each start")
    return Sourced([rail.get(key) for rail in rails], Origin.detected, "fabric report")


def _rails(path: Path) -> list[dict[str, object]]:
    try:
        rails = json.loads(path.read_bytes())["rails"]
        assert isinstance(rails, list)
        assert all(isinstance(rail, dict) for rail in rails)
    except (OSError, ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise SparkloomError(
            "this is no fabric report",
            file=path,
            mend="save the output of `sparkloom fabric show --format json` on that node",
        ) from None
    return rails

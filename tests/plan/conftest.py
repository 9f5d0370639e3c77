"""Clusters and memory for the planner's tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkloom.cluster import Cluster, parse

DOCUMENT: dict[str, Any] = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
    ],
    "drafter": {"kind": "dflash2", "accept_non_commercial_licence": True},
}
MEMINFO = Path(__file__).parents[1] / "fixtures" / "meminfo"


@pytest.fixture
def make() -> Callable[..., Cluster]:
    """A two-node cluster with sections changed: `make(serving={"max_sequences": 2})`."""

    def build(**sections: Any) -> Cluster:
        document = copy.deepcopy(DOCUMENT)
        for name, value in sections.items():
            if isinstance(value, dict):
                document[name] = {**document.get(name, {}), **value}
            else:
                document[name] = value
        return parse(document)

    return build


@pytest.fixture
def meminfo() -> Path:
    """Folder of saved /proc/meminfo files."""
    return MEMINFO

"""A good cluster document to change."""

from __future__ import annotations

import copy
from typing import Any

import pytest

PAIR: dict[str, Any] = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1", "192.168.101.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2", "192.168.101.2"]}},
    ]
}


@pytest.fixture
def pair() -> dict[str, Any]:
    """The smallest cluster file of two nodes, as a fresh value."""
    return copy.deepcopy(PAIR)

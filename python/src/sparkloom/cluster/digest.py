"""Digests that two nodes compare before they start."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sparkloom.cluster.types import Cluster


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: the same bytes for the same content."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest(cluster: Cluster) -> str:
    """Hex SHA-256 of the cluster's content with all defaults written out.

    Spacing, key order and defaults that are written or left out do not change it; every value does.
    """
    return sha256(cluster.model_dump(mode="json"))

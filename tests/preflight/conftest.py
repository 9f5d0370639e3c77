"""A cluster of two Sparks and a way to preflight its head on a fake tree."""

from __future__ import annotations

import copy
import itertools
import json

import pytest

from sparkloom.cluster import parse
from sparkloom.preflight import context, run_checks
from sparkloom.sysroot import SysRoot

PAIR = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1", "192.168.101.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2", "192.168.101.2"]}},
    ]
}


@pytest.fixture
def pair():
    return copy.deepcopy(PAIR)


@pytest.fixture
def cluster_file(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(PAIR))
    return path


@pytest.fixture
def check(pair, tmp_path):
    """Findings of one check on a tree, with changes to the cluster document."""

    count = itertools.count()

    def run(name, tree, node="head", **sections):
        root = tmp_path / f"tree{next(count) or ''}"
        tree.write(root)
        return run_checks(context(parse({**pair, **sections}), node, SysRoot(root)), only=[name])

    return run

"""Any text, any JSON, any change of a good file: a cluster or one clear error, never a traceback."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sparkloom.cluster import Cluster, digest, loads, settings
from sparkloom.cluster.model import Geometry
from sparkloom.cluster.notes import notes
from sparkloom.cluster.render import render
from sparkloom.cluster.schema import walk
from sparkloom.errors import Exit, SparkloomError
from sparkloom.plan import free, plan

PAIR: dict[str, Any] = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
    ]
}
PATHS = sorted(path for path, _ in walk() if not path.startswith("nodes[]."))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["dflash2", "none", "cpu", "fp8", "0.0.0.0", "/x", "text-only", "a" * 40, "\ud800"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def outcome(text: str | bytes) -> Cluster | None:
    """The cluster, or None after one good error. Everything that derives from a good cluster must work."""
    problem: SparkloomError | None = None
    try:
        cluster = loads(text, file="cluster.json")
    except SparkloomError as error:
        problem = error
    if problem is not None:
        assert problem.code is Exit.INPUT
        assert problem.summary
        assert problem.mend
        assert json.dumps(problem.as_dict())
        assert str(problem)
        return None
    settings(cluster)
    notes(cluster)
    digests = {render(cluster, node.name).digest for node in cluster.nodes}
    assert len(digests) == 1
    assert digest(cluster) == digest(loads(cluster.model_dump_json(exclude_unset=True)))
    if cluster.model.geometry is Geometry.glm_flash:
        memory = {node.name: free.assumed(cluster.memory.total_bytes) for node in cluster.nodes}
        decided = plan(cluster, memory)
        assert json.dumps(decided.as_dict())
        assert decided.fits or decided.mends
    return cluster


@given(st.one_of(st.text(), st.binary()))
@hypothesis_settings(deadline=None)
def test_any_text(text: str | bytes) -> None:
    outcome(text)


@given(JSON)
@hypothesis_settings(deadline=None)
def test_any_json(value: Any) -> None:
    outcome(json.dumps(value))


@given(st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=4))
@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_value_anywhere(changes: list[tuple[str, Any]]) -> None:
    document = copy.deepcopy(PAIR)
    for path, value in changes:
        section, _, name = path.rpartition(".")
        target = document.setdefault(section, {}) if section else document
        if isinstance(target, dict):
            target[name] = value
    outcome(json.dumps(document))


@given(st.sampled_from(PATHS), st.integers(-2, 1 << 40))
@hypothesis_settings(deadline=None)
def test_any_number_anywhere(path: str, value: int) -> None:
    section, _, name = path.rpartition(".")
    document = copy.deepcopy(PAIR)
    if section:
        document[section] = {name: value}
    else:
        document[name] = value
    outcome(json.dumps(document))


@given(JSON, st.integers(0, 1))
@hypothesis_settings(deadline=None)
def test_any_node(value: Any, index: int) -> None:
    document = copy.deepcopy(PAIR)
    for key in ("name", "role", "fabric", "agent_port"):
        changed = copy.deepcopy(document)
        changed["nodes"][index][key] = value
        outcome(json.dumps(changed))
    document["nodes"][index] = value
    outcome(json.dumps(document))

"""The checked-in JSON Schema is the model's, and says something about every field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkloom.cluster import load
from sparkloom.cluster.schema import checked_in, describe, json_schema, walk

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_checked_in_schema_is_current() -> None:
    assert json.loads(checked_in()) == json_schema(), (
        "run: sparkloom schema -o python/src/sparkloom/cluster/cluster.schema.json"
    )


def test_every_field_has_a_description() -> None:
    missing = [path for path, _ in walk() if not describe(path)]
    assert not missing


def test_units_are_in_the_names() -> None:
    for path, _ in walk():
        text = describe(path).lower()
        if " in bytes" in text and "mtu" not in path:
            assert path.endswith(("_bytes", "_bytes_per_size")), path
        if " in milliseconds" in text:
            assert path.endswith("_ms"), path


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda p: p.name)
def test_examples_load(path: Path) -> None:
    load(path)

"""docs/cluster.md and docs/knobs.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from sparkloom.cluster.reference import markdown, profiles_markdown
from sparkloom.cluster.schema import section_of, walk
from sparkloom.cluster.types import Cluster

DOCS = Path(__file__).parents[2] / "docs"


def test_field_reference_is_current() -> None:
    text = (DOCS / "cluster.md").read_text()
    assert text.endswith(markdown()), "run: sparkloom schema --markdown, and put it under '## All fields'"
    assert profiles_markdown() in text


def test_knobs_name_fields_that_exist() -> None:
    known = {path for path, _ in walk()} | set(Cluster.model_fields)
    known |= {f"nodes[].{name}" for name in ("fabric",)}
    sections = {name for name, field in Cluster.model_fields.items() if section_of(field)}
    for line in (DOCS / "knobs.md").read_text().splitlines():
        if not line.startswith("|"):
            continue
        ours = line.split("|")[2]
        for word in re.findall(r"`([^`]+)`", ours):
            if word.startswith("sparkloom ") or word.partition(".")[0].removesuffix("[]") not in sections:
                continue
            assert word in known, word

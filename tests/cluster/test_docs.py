"""docs/cluster.md and docs/knobs.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from sparkloom.cli.table import COMMANDS
from sparkloom.cluster.reference import markdown, profiles_markdown
from sparkloom.cluster.schema import section_of, walk
from sparkloom.cluster.types import Cluster
from sparkloom.errors import Exit

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


def test_every_command_has_a_row() -> None:
    text = (DOCS / "cli.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {word.split()[0] for row in rows for word in re.findall(r"`([^`]+)`", row)}
    missing = set(COMMANDS) - named
    assert not missing, f"docs/cli.md: add a row for {', '.join(sorted(missing))}"


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    assert not [code for code in Exit if f"| {int(code)} | " not in text]

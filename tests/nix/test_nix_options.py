"""`services.sparkloom`: the option tree is the schema, bad configurations get their message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from nixlab import REPO, facts

SCHEMA = json.loads((REPO / "python/src/sparkloom/cluster/cluster.schema.json").read_text())
PREFIX = "services.sparkloom.cluster."


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """The node with references followed; a union with null becomes its other branch."""
    if "$ref" in node:
        target = SCHEMA["$defs"][node["$ref"].removeprefix("#/$defs/")]
        return {**resolve(target), **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node:
        inner = next(resolve(branch) for branch in node["anyOf"] if branch.get("type") != "null")
        return {**inner, **{key: value for key, value in node.items() if key != "anyOf"}, "nullable": True}
    return node


def walk(node: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Every field of the schema as option path -> node; list elements are written `*`."""
    found: dict[str, dict[str, Any]] = {}
    for name, raw in resolve(node)["properties"].items():
        if name == "$schema":
            continue
        field = resolve(raw)
        path = prefix + name
        found[path] = field
        if field.get("type") == "object" and "properties" in field:
            found |= walk(field, path + ".")
        elif field.get("type") == "array" and "properties" in resolve(field["items"]):
            found |= walk(field["items"], path + ".*.")
    return found


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, Any]]:
    return {option["name"]: option for option in facts("options")["options"]}


def test_option_tree_and_schema_have_the_same_fields(options: dict[str, dict[str, Any]]) -> None:
    names = [name for name in options if name.startswith(PREFIX) and "_module." not in name]
    ours = {name.removeprefix(PREFIX) for name in names}
    assert ours == set(walk(SCHEMA))
    assert len(ours) > 100


def test_types_and_texts_follow_the_schema(options: dict[str, dict[str, Any]]) -> None:
    words = {"boolean": "boolean", "integer": "integer", "number": "number", "string": "string"}
    for path, field in walk(SCHEMA).items():
        option = options[PREFIX + path]
        assert option["description"] == field["description"], path
        if "enum" in field:
            assert all(json.dumps(value) in option["type"] for value in field["enum"]), path
        elif field.get("type") in words and "format" not in field and "const" not in field:
            kind = "string" if words[field["type"]] == "string" else words[field["type"]]
            assert kind in option["type"], (path, option["type"])
        if field.get("nullable"):
            assert option["type"].startswith("null or "), (path, option["type"])
        for bound in ("minimum", "maximum"):
            if bound in field:
                assert str(field[bound]) in option["type"], (path, option["type"])


def test_defaults_are_the_schema_s(options: dict[str, dict[str, Any]]) -> None:
    for path, field in walk(SCHEMA).items():
        shown = options[PREFIX + path]["default"]
        if "default" not in field:
            continue
        value = field["default"]
        if value is None or isinstance(value, (bool, str)):
            assert shown == json.dumps(value), path
        elif isinstance(value, (int, float)):
            assert float(shown) == float(value), path


def test_every_option_is_documented(options: dict[str, dict[str, Any]]) -> None:
    for name, option in options.items():
        assert option["description"], name
        assert option["description"].rstrip().endswith((".", ")", "`", ":")), name


def test_good_pair_has_no_message() -> None:
    assert facts("options")["good"] == []


def test_bad_configurations_are_named() -> None:
    found = facts("options")
    assert len(found["bad"]) > 20
    for name, messages in found["bad"].items():
        # One mistake, one message: the mend is not hidden among others.
        assert len(messages) == 1, (name, messages)
        assert found["expected"][name] in messages[0], (name, messages)
        assert messages[0].startswith("services.sparkloom"), (name, messages)


def test_evaluation_never_refuses_what_the_planner_would_accept(tmp_path: Path) -> None:
    from sparkloom.cluster import load
    from sparkloom.plan import kv_bytes, needs

    plans = facts("options")["plans"]
    assert len(plans) > 5
    for number, case in enumerate(plans):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(case["cluster"]))
        cluster = load(file)
        for node in cluster.nodes:
            whole = sum(item.bytes for item in needs(cluster, node, kv_bytes(cluster)))
            assert case["bound"] <= whole, (case, whole)
            # A bound that says nothing would be easy to hold.
            assert case["bound"] > 0.75 * whole, (case, whole)


def test_free_form_settings_reach_the_file() -> None:
    assert facts("options")["freeform"] == {"max_sequences": 2, "some_new_field": 1}


def option_table() -> str:
    """docs/nixos-options.md."""
    rows = []
    for option in sorted(facts("options")["options"], key=lambda one: one["name"]):
        name = option["name"].removeprefix("services.sparkloom.")
        if option["internal"] or "_module." in name or name.startswith("cluster."):
            continue
        cells = [
            f"`{name}`",
            option["type"],
            f"`{option['default']}`" if option["default"] else "",
            option["description"],
        ]
        rows.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    head = "# Options of `services.sparkloom`\n\n"
    head += "Generated from the modules. Below `cluster` are the fields of the cluster file, same names,\n"
    head += "types, bounds and defaults: see [cluster.md](cluster.md).\n\n"
    head += "| option | type | default | |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(rows) + "\n"


def test_generated_documentation_is_up_to_date() -> None:
    file = REPO / "docs/nixos-options.md"
    if os.environ.get("SPARKLOOM_WRITE_GOLDEN"):
        file.write_text(option_table())
    assert file.read_text() == option_table(), (
        "options changed: SPARKLOOM_WRITE_GOLDEN=1 pytest tests/nix/test_nix_options.py"
    )


def test_values_outside_their_type_are_refused() -> None:
    refused = facts("options")["refused"]
    assert len(refused) > 10
    assert all(refused.values()), [name for name, value in refused.items() if not value]

"""Final values and where they came from: file > profile > model default > detected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkloom.cli.main import run
from sparkloom.cluster import Origin, Settings, parse, settings, sourced
from sparkloom.cluster.profiles import CPU_DEFAULTS, MODEL_DEFAULTS, PROFILES
from sparkloom.cluster.schema import walk
from sparkloom.errors import Exit


def test_precedence(pair: dict[str, Any]) -> None:
    pair["profile"] = "agents"
    pair["serving"] = {"max_sequences": 2, "max_batched_tokens": None}
    found = sourced(parse(pair))
    assert found["serving.max_sequences"].origin is Origin.file
    assert found["serving.max_batched_tokens"].origin is Origin.profile
    assert found["serving.max_batched_tokens"].value == 4608
    assert found["serving.max_queued_requests"].origin is Origin.model_default


def test_every_value_is_explained(pair: dict[str, Any]) -> None:
    paths = {path for path, _ in walk() if not path.startswith("nodes[].")}
    assert set(sourced(parse(pair))) == paths


def test_profile_and_default_keys_are_fields() -> None:
    paths = {path for path, _ in walk()}
    for profile in PROFILES.values():
        assert set(profile.values) <= paths
        assert profile.trade.endswith(".")
        assert "at the cost of" in " ".join(profile.trade.split())
    assert set(MODEL_DEFAULTS) <= paths
    assert set(CPU_DEFAULTS) <= paths


def test_settings_are_concrete(pair: dict[str, Any]) -> None:
    for profile in PROFILES:
        final = settings(parse({**pair, "profile": profile.value}))
        assert not [name for name in Settings.__slots__ if getattr(final, name) is None]


@pytest.mark.parametrize("profile", [p.value for p in PROFILES])
def test_profiles_fit_a_common_machine(pair: dict[str, Any], profile: str) -> None:
    """Each profile with either drafter fits where 110 GiB are free (`no-drafter` without one)."""
    from sparkloom.plan import free, plan

    drafters = [{}, {"kind": "dflash2", "accept_non_commercial_licence": True}]
    for drafter in drafters[:1] if profile == "no-drafter" else drafters:
        cluster = parse({**pair, "profile": profile, "drafter": drafter})
        memory = {n.name: free.assumed(cluster.memory.total_bytes) for n in cluster.nodes}
        assert plan(cluster, memory).fits


def test_command(tmp_path: Path, pair: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.json"
    pair["serving"] = {"max_sequences": 2}
    file.write_text(json.dumps(pair))
    report = tmp_path / "fabric.json"
    report.write_text(json.dumps({"rails": [{"netdev": "a", "rdma": "b", "gid_index": 5}]}))
    assert run(["explain", str(file), "--fabric", f"worker={report}", "--format", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)["values"]
    assert found["serving.max_sequences"] == {"value": 2, "origin": "file", "note": ""}
    assert found["serving.context_tokens"]["origin"] == "profile"
    assert found["nodes[1].fabric.gid_index"] == {"value": [5], "origin": "detected", "note": "fabric report"}
    assert run(["explain", str(file), "serving"]) == Exit.OK
    text = capsys.readouterr().out
    assert "serving.max_sequences" in text
    assert "api.port" not in text
    assert run(["explain", str(file), "serving.max_sequence"]) == Exit.USAGE
    assert "serving.max_sequences" in capsys.readouterr().err

"""The compile gate: its rules on made-up numbers, and the real build against the accepted table."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def gate(repo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate", repo / "kernels/tools/gate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REPORT = """
ptxas info    : Compiling entry function '_ZN9sparkloom12thin_gate_upILi4ELNS_6FamilyE0ELi1EEEvNS_8ThinArgsE' for 'sm_121a'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 33920 bytes smem
ptxas info    : Compiling entry function '_ZN9sparkloom7fat_moeILi4ELNS_6FamilyE0ELb1EEEvNS_7FatArgsE' for 'sm_121a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 120 registers, used 1 barriers, 128 bytes smem
"""  # noqa: E501


def test_reads_a_ptxas_report(gate: ModuleType) -> None:
    found = gate.resources(REPORT)
    assert found["thin_gate_up<NB=1>"] == {"shared": 33920, "local": 8, "spills": 16, "registers": 128}
    assert found["fat_moe<shared>"]["shared"] == 128 + 3 * 16384


def test_refuses_growth_and_too_much_shared_memory(gate: ModuleType) -> None:
    good = {"k": {"registers": 100, "shared": 1000, "local": 0, "spills": 0, "per_weight": 4.0}}
    assert gate.complaints(good, good) == []
    for field, value in (
        ("registers", 101),
        ("spills", 4),
        ("local", 8),
        ("shared", 102400),
        ("per_weight", 4.5),
    ):
        assert gate.complaints({"k": good["k"] | {field: value}}, good), field
    assert gate.complaints({}, good) == ["k: gone"]
    assert gate.complaints(good, {}) == ["k: not in the accepted table"]


def test_accepted_table_keeps_the_limits(gate: ModuleType) -> None:
    accepted = json.loads(gate.ACCEPTED.read_text())
    assert {"thin_gate_up<NB=1>", "thin_down<NB=1>", "fat_moe<shared>"} <= accepted.keys()
    assert all(k["shared"] <= gate.LIMIT for k in accepted.values())
    for name in ("thin_gate_up<NB=1>", "thin_down<NB=1>"):
        assert accepted[name]["spills"] == 0


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")
def test_the_build_matches_the_accepted_table(gate: ModuleType) -> None:
    kernels = gate.measure()
    print(gate.table(kernels))
    assert gate.complaints(kernels, json.loads(gate.ACCEPTED.read_text())) == []

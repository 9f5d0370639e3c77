"""The compatibility ledger and the version rules behind it."""

from __future__ import annotations

import pytest
from fixtures.spark_tree import good_spark
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.findings import Level
from sparkloom.preflight.ledger import LEVELS, applies, judge, load_ledger, parse_ledger
from sparkloom.preflight.versions import compare, matches, nccl_version, parse_version


@pytest.mark.parametrize(
    ("facts", "cmdline", "level"),
    [
        ({"nccl": "22809"}, "", "fail"),
        ({"nccl": "2.30.7"}, "", "ok"),
        ({"kernel": "7.0.0-1019-nvidia"}, "quiet", "warn"),
        ({"kernel": "7.0.0-1019-nvidia"}, "quiet kho=off", "ok"),
        ({"kernel": "6.17.0-1014-nvidia", "driver": "580.126.09"}, "", "ok"),
        ({"driver": "590.44"}, "", "warn"),
        ({"vllm": "0.28.0"}, "", "fail"),
        ({"vllm": "0.33.0+cu130"}, "", "ok"),
        ({}, "", "ok"),
    ],
)
def test_facts_are_judged(facts, cmdline, level):
    found = judge(facts, cmdline)
    assert {str(f.level) for f in found} == {level}
    if level != "ok":
        assert found[0].detail.startswith("source: ")
        assert found[0].mend


def test_every_row_has_a_source_and_a_known_verdict():
    rows = load_ledger()
    assert len({row.name for row in rows}) == len(rows)
    assert {row.verdict for row in rows} == set(LEVELS)
    assert all(row.source and row.why for row in rows)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "great"},
        {"when": {}},
        {"when": {"moon": ">1"}},
        {"when": {"nccl": "2.29"}},
        {"source": ""},
        {"mend": ""},
    ],
)
def test_a_wrong_row_is_refused(change):
    row = {"name": "x", "when": {"nccl": "<2"}, "verdict": "bad", "why": "y", "mend": "z", "source": "s"}
    assert parse_ledger({"rows": [row]})
    with pytest.raises(ValueError):  # noqa: PT011
        parse_ledger({"rows": [row | change]})


def test_different_firmware_on_the_devices_is_a_warning(check):
    tree = good_spark()
    assert [f.level for f in check("ledger", tree)] == [Level.ok]
    tree.files["sys/class/infiniband/roceP2p1s0f0/fw_ver"] = "28.44.1036"
    assert "ledger.firmware" in {f.check for f in check("ledger", tree)}


def test_version_rules():
    assert parse_version("6.17.0-1014-nvidia") == (6, 17, 0, 1014)
    assert parse_version("580.178.04") == (580, 178, 4)
    assert parse_version("none") is None
    assert matches((2, 30), "==2.30.0")
    assert not matches((2, 29, 2), ">=2.29.3")
    assert matches((6, 17, 5), ">=6.17,<6.18")
    with pytest.raises(ValueError, match="not a version rule"):
        matches((1,), "~=1")


@given(st.text(max_size=40))
def test_any_text_is_a_version_or_none(text):
    for version in (parse_version(text), nccl_version(text)):
        assert version is None or all(part >= 0 for part in version)
        if version:
            assert compare(version, "==", version)
            row = load_ledger()[0]
            applies(row, {"nccl": text})

"""Findings: the exit codes, the JSON keys and the text."""

from __future__ import annotations

import pytest

from sparkloom.errors import SparkloomError
from sparkloom.findings import Level, exit_code, fail, from_error, ok, print_text, report_dict, warn, worst


@pytest.mark.parametrize(
    ("findings", "strict", "code"),
    [
        ([], True, 0),
        ([ok("a", "x")], True, 0),
        ([ok("a", "x"), warn("b", "y")], False, 0),
        ([ok("a", "x"), warn("b", "y")], True, 1),
        ([warn("b", "y"), fail("c", "z"), ok("a", "x")], False, 3),
        ([fail("c", "z")], True, 3),
    ],
)
def test_the_worst_finding_decides_the_exit_code(findings, strict, code):
    assert exit_code(findings, strict=strict) == code
    assert report_dict(findings, strict=strict)["exit_code"] == code


def test_json_has_exactly_the_promised_keys():
    found = fail("fabric.gid", "no entry", "set the address", "index 0 is link-local").as_dict()
    assert found == {
        "check": "fabric.gid",
        "level": "fail",
        "summary": "no entry",
        "detail": "index 0 is link-local",
        "mend": "set the address",
    }


def test_an_error_becomes_a_failing_finding_with_its_places():
    error = SparkloomError("not JSON", file="/a/b.json", field="nodes", value=3, mend="write JSON")
    finding = from_error("validate", error)
    assert finding.level is Level.fail
    assert "file: /a/b.json" in finding.detail
    assert finding.mend == "write JSON"


def test_text_shows_markup_characters_as_they_are(capsys):
    print_text([warn("x", "saw [red] text", "remove [it]", "| [a] |"), ok("y", "fine", "not shown")])
    out = capsys.readouterr().out
    assert "saw [red] text" in out
    assert "mend: remove [it]" in out
    assert "| [a] |" in out
    assert "not shown" not in out
    assert "1 warn" in out
    print_text([warn("x", "z")], total=False)
    assert "1 warn" not in capsys.readouterr().out
    assert worst([]) is Level.ok

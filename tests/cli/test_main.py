"""The command line as a person meets it: help, typos, exit codes, JSON errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparkloom.cli.main import run, usage
from sparkloom.cli.table import COMMANDS
from sparkloom.errors import Exit, SparkloomError


def test_usage_names_every_command() -> None:
    text = usage()
    assert all(name in text for name in COMMANDS)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == Exit.USAGE
    assert "usage:" in capsys.readouterr().err


def test_typo_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exl4"]) == Exit.USAGE
    assert "did you mean `sparkloom exl3`?" in capsys.readouterr().err


def test_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nothing", "--format", "json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == Exit.USAGE


def test_error_text_carries_file_field_value_and_mend() -> None:
    text = str(SparkloomError("bits out of range", file="a.json", field="bits", value=9, mend="use 1 to 8"))
    assert text.splitlines() == [
        "error: bits out of range",
        "  file: a.json",
        "  field: bits",
        "  value: 9",
        "  mend: use 1 to 8",
    ]


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from sparkloom.cli.main import run; run(['--help']);"
        "bad = {'torch', 'vllm', 'numba', 'numpy', 'pydantic', 'typer'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("words", ["schema", "schema --markdown", "version", "--help", "validate --help"])
def test_reader_that_goes_away_is_no_failure(words: str) -> None:
    """`sparkloom ... | head`: no traceback, no error code."""
    command = [sys.executable, "-m", "sparkloom", *words.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()  # before a byte was read
        assert process.stderr is not None
        said = process.stderr.read()
        assert (process.wait(30), said) == (0, "")

"""`compute-sanitizer` over one small call of every kernel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.heavy,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the path"
    ),
]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    script = Path(__file__).with_name("sanitized.py")
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    assert "every kernel ran" in text
    assert "0 hazards" in text if tool == "racecheck" else "ERROR SUMMARY: 0 errors" in text, text[-1000:]

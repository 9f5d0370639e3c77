"""Every Nix file parses, and none uses what this flake does without."""

from __future__ import annotations

import re
import subprocess

import pytest
from nixlab import REPO, environment, need_nix

FOLDERS = [REPO / name for name in ("pkgs", "modules", "hosts", "tests/nix")]
FILES = [REPO / "flake.nix", *sorted(path for folder in FOLDERS for path in folder.rglob("*.nix"))]


def test_every_file_parses() -> None:
    need_nix()
    result = subprocess.run(
        ["nix-instantiate", "--parse", *map(str, FILES)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPO)))
def test_pure_and_explicit(path) -> None:
    text = path.read_text()
    assert "currentSystem" not in text, "a flake must not ask which machine evaluates it"
    assert not re.search(r"^with pkgs;", text, re.M), "name what is used instead of opening the package set"
    assert "import (fetch" not in text, "no import from a derivation"
    assert len(text.splitlines()) <= 400, "one subject per file"

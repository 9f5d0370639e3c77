"""The report of the image: what it lists, and that it refuses weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nixlab import REPO

SCRIPT = REPO / "pkgs/image/report.py"


def distribution(site: Path, name: str, version: str, *lines: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines])
    (folder / "METADATA").write_text(text + "\n\nLicense-Expression: not a header\n")


def report(tmp_path: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "paths").write_text("\n".join(paths) + "\n")
    (tmp_path / "out").mkdir()
    command = [sys.executable, str(SCRIPT), "--name", "sparkloom", "--version", "1.2.3"]
    command += ["--site-packages", str(tmp_path / "site"), "--store-paths", str(tmp_path / "paths")]
    command += ["--output", str(tmp_path / "out")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_report_lists_packages_with_their_licences(tmp_path: Path) -> None:
    site = tmp_path / "site"
    distribution(site, "alpha", "1.0", "License-Expression: MIT")
    distribution(site, "beta", "2.0", "Classifier: License :: OSI Approved :: Apache Software License")
    distribution(site, "gamma", "3.0", "License: BSD-3-Clause")
    distribution(site, "delta", "4.0")
    store = ["zlib-1.3.1", "python3.12-alpha-1.0", "bash-5.2p37"]
    assert report(tmp_path, *(f"/nix/store/{'a' * 32}-{name}" for name in store)).returncode == 0
    bill = json.loads((tmp_path / "out/sbom.cdx.json").read_text())
    found = {one["name"]: one for one in bill["components"]}
    assert set(found) == {"alpha", "beta", "gamma", "delta", "zlib", "bash"}
    assert found["alpha"]["licenses"] == [{"license": {"name": "MIT"}}]
    assert found["beta"]["licenses"] == [{"license": {"name": "Apache Software License"}}]
    assert found["delta"]["licenses"] == [{"license": {"name": "not stated"}}]
    assert found["zlib"]["version"] == "1.3.1"
    assert bill["metadata"]["component"] == {"type": "container", "name": "sparkloom", "version": "1.2.3"}
    text = (tmp_path / "out/licences.txt").read_text()
    assert "gamma 3.0: BSD-3-Clause" in text
    assert "non-commercial, never shipped" in text


@pytest.mark.parametrize("name", ["model.safetensors", "draft.gguf"])
def test_report_refuses_weights(tmp_path: Path, name: str) -> None:
    distribution(tmp_path / "site", "alpha", "1.0")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).write_bytes(b"x")
    result = report(tmp_path, str(tmp_path / "store"))
    assert result.returncode == 1
    assert name in result.stderr
    assert not (tmp_path / "out/sbom.cdx.json").exists()

"""The installation pages show what the programs take: cluster file, quadlet, options, files."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from nixlab import REPO, facts

DOCS = REPO / "docs"
DGX = (DOCS / "install-dgx-os.md").read_text()
PAGES = ("install-nixos.md", "install-dgx-os.md", "build.md")


def block(text: str, start: str) -> str:
    """The indented block that begins with `start`."""
    body = text[text.index("    " + start) :]
    lines = []
    for line in body.splitlines():
        if line and not line.startswith("    "):
            break
        lines.append(line)
    return textwrap.dedent("\n".join(lines))


def test_the_smallest_cluster_file_is_right(tmp_path: Path) -> None:
    from sparkloom.cluster import load

    file = tmp_path / "cluster.json"
    file.write_text(block(DGX, '{\n      "nodes"'))
    assert [node.name for node in load(file).nodes] == ["spark-head", "spark-worker"]
    assert json.loads(file.read_text())["nodes"][0]["fabric"]["interfaces"]


def test_the_quadlet_has_the_facts_of_the_units() -> None:
    from sparkloom.units import facts as unit_facts

    service = unit_facts()["units"]["sparkloom-agent.service"]["Service"]
    quadlet = block(DGX, "[Unit]\n    After=network-online")
    for key in (
        "LimitMEMLOCK",
        "OOMScoreAdjust",
        "Restart",
        "RestartPreventExitStatus",
        "TimeoutStartSec",
        "TimeoutStopSec",
    ):
        assert f"{key}={service[key]}" in quadlet, key
    assert "@sha256:" in quadlet
    assert "privileged" not in quadlet.lower()


@pytest.mark.parametrize("page", PAGES)
def test_options_and_files_that_the_pages_name_exist(page: str) -> None:
    text = (DOCS / page).read_text()
    for path in re.findall(r"`((?:docs|pkgs|hosts|python|tests|modules|kernels|patches)/[\w./-]*\w)`", text):
        if path != "patches/vllm":
            assert (REPO / path).exists(), path
    named = re.findall(r"`services\.sparkloom\.([\w.]+\w)`", text)
    known = {option["name"].removeprefix("services.sparkloom.") for option in facts("options")["options"]}
    for name in named:
        assert name in known, name


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_the_pages_show_exist(page: str) -> None:
    from sparkloom.cli.table import COMMANDS

    text = (DOCS / page).read_text()
    shown = set(re.findall(r"(?:^    |`|sudo -u sparkloom )sparkloom ([a-z]+)\b", text, re.M))
    assert shown

    assert shown <= set(COMMANDS), shown - set(COMMANDS)

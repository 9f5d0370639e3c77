"""flake.lock is complete, agrees with flake.nix and with the table of how each hash was obtained."""

from __future__ import annotations

import json
import re

import pytest
from nixlab import REPO, need_store, run

LOCK = json.loads((REPO / "flake.lock").read_text())
PINS = json.loads((REPO / "pkgs/pins.json").read_text())
FLAKE = (REPO / "flake.nix").read_text()
NODES = {name: node for name, node in LOCK["nodes"].items() if name != LOCK["root"]}


def flake_inputs() -> dict[str, dict[str, object]]:
    """Every input of flake.nix as a lock file writes it (`original`)."""
    found: dict[str, dict[str, object]] = {}
    for name, url in re.findall(r"^    ([\w-]+)\.url = \"([^\"]+)\";", FLAKE, re.M):
        found[name] = reference(url)
    for name, body in re.findall(r"^    ([\w-]+) = \{\n(.*?)^    \};", FLAKE, re.M | re.S):
        values: dict[str, object] = dict(re.findall(r"^      (\w+) = \"([^\"]+)\";", body, re.M))
        values |= dict.fromkeys(re.findall(r"^      (\w+) = true;", body, re.M), True)
        assert re.search(r"^      flake = false;", body, re.M), name
        found[name] = values if "type" in values else reference(str(values["url"]))
    return found


def reference(url: str) -> dict[str, object]:
    """A github: address as attributes."""
    kind, _, path = url.partition(":")
    owner, repo, *tail = path.split("/", 2)
    assert kind == "github"
    where = {("rev" if re.fullmatch(r"[0-9a-f]{40}", part) else "ref"): part for part in tail}
    return {"type": kind, "owner": owner, "repo": repo, **where}


def test_lock_and_flake_name_the_same_inputs() -> None:
    assert LOCK["nodes"]["root"]["inputs"] == {name: name for name in flake_inputs()}
    assert set(NODES) == set(flake_inputs())


@pytest.mark.parametrize("name", NODES)
def test_each_entry_is_pinned_and_explained(name: str) -> None:
    node, pin = NODES[name], PINS[name]
    assert node["original"] == flake_inputs()[name]
    locked = node["locked"]
    assert re.fullmatch(r"[0-9a-f]{40}", locked["rev"])
    assert node["original"].get("rev", locked["rev"]) == locked["rev"]
    assert locked["rev"] == pin["rev"]
    assert locked.get("narHash") == pin["narHash"]
    assert pin["obtained"].startswith(("computed: ", "public: ", "revision "))
    if pin["narHash"] is None:
        # A field that is there must be true, so what is only guessed stays out.
        assert "narHash is left out" in pin["obtained"]
        assert "lastModified" not in locked
    else:
        assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", pin["narHash"])
        assert isinstance(locked["lastModified"], int)


def test_table_has_no_stale_rows() -> None:
    assert set(PINS) == set(NODES)


def test_nix_finds_the_lock_complete() -> None:
    """Nix itself would fetch something if an entry were missing or did not fit; here it has no network."""
    need_store()
    metadata = json.loads(
        run("nix", "flake", "metadata", "--json", "--no-write-lock-file", f"path:{REPO}").stdout
    )
    assert metadata["locks"] == LOCK


def test_other_pins_say_how_they_were_obtained() -> None:
    text = (REPO / "pkgs/sources.nix").read_text()
    entries = re.findall(r"^  ([\w-]+) = (?:rec )?\{\n(.*?)^  \};", text, re.M | re.S)
    assert entries
    for name, body in entries:
        assert re.search(r'obtained = "(computed|public): .+";', body), name
        assert re.search(r'(sha256 = "[0-9a-f]{64}"|hash = "sha256-[A-Za-z0-9+/]{43}=")', body), name

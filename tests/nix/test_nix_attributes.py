"""pkgs/README.md lists every attribute of nixpkgs that the files use, and no other."""

from __future__ import annotations

import re

from nixlab import REPO

TEXT = (REPO / "pkgs/README.md").read_text()
# Arguments that come from this flake, from the flake machinery or from Nix itself.
SCOPE = re.findall(r"^  ([\w-]+) = ", (REPO / "pkgs/scope.nix").read_text(), re.M)
OTHERS = "amend bits callPackage groups inputs lib library own pkgs pythonPackages self system torch"
OWN = {*SCOPE, *OTHERS.split(), "vllmFromSource"}
PYTHON = ["jinja2", "ninja", "packaging", "setuptools", "setuptools-rust", "setuptools-scm", "wheel"]


def code(path) -> str:
    return re.sub(r"#.*", "", path.read_text())


def used() -> set[str]:
    """Names that the files take from the package set."""
    found: set[str] = set()
    for path in (REPO / "pkgs").rglob("*.nix"):
        text = code(path)
        if arguments := re.match(r"\s*\{([^}]*)\}\s*:", text):
            found |= {name.split("?")[0].strip() for name in arguments[1].split(",")}
        if path.name in ("overlay.nix",):
            found |= set(re.findall(r"\b(?:final|prev)\.([a-zA-Z][\w-]*)", text))
    for folder in ("modules", "hosts", "pkgs/checks"):
        for path in (REPO / folder).rglob("*.nix"):
            found |= set(re.findall(r"\bpkgs\.([a-zA-Z][\w-]*)", code(path)))
    found |= set(re.findall(r"pkgsFor\.\$\{system\}\.([a-zA-Z][\w-]*)", code(REPO / "pkgs/outputs.nix")))
    return {name for name in found if name} - OWN - {"newScope", "sparkloomPackages"}


def test_list_and_files_agree() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\d\d\.\d\d) \|", TEXT, re.M))
    assert set(rows) == used()
    # Nothing is newer than the release that the lock pins.
    assert all(release <= "26.05" for release in rows.values())


def test_parts_of_the_cuda_set_are_listed() -> None:
    found: set[str] = set()
    for path in (REPO / "pkgs").rglob("*.nix"):
        found |= set(re.findall(r"\bcudaPackages\.([a-zA-Z_]+)", code(path)))
    listed = re.search(r"Of `cudaPackages`: (.*?)\(", TEXT, re.S)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == found


def test_python_packages_are_listed() -> None:
    listed = re.search(r"Of the Python package set.*?: (.*?)\.\n", TEXT, re.S)
    assert listed is not None
    names = set(re.findall(r"`([\w-]+)`", listed[1]))
    assert set(PYTHON) <= names
    text = "".join(code(path) for path in (REPO / "pkgs").rglob("*.nix"))
    assert all(name in text for name in names)

#!/usr/bin/env python3
"""Rewrite a Poetry lock file so that poetry2nix reads it rightly: prune.py LOCK [--output FILE] [--check].

poetry2nix (its last commit is of April 2025) has three faults with lock files of Poetry 2:

1. It ignores the `markers` key of a package. Of two versions for different platforms it may take the wrong
   one. Here packages whose markers hold on no target are dropped. Where two versions stay all the same
   (Poetry writes overlapping markers for what an extra asks for), the one that meets every requirement of
   the other packages stays; if that does not leave exactly one, it is an error.
2. It throws on wheel tags of architectures that it does not know (riscv64, loongarch64). Here every wheel
   that no target can load is dropped; source archives stay.
3. It reads `[tool.poetry]` only, never `[project]`. That is mended in python/pyproject.toml, which has both.

The content hash stays: it covers pyproject.toml, not the list of packages. `packaging` is needed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

PYTHON = "3.12"
MACHINES = ("aarch64", "x86_64")


def environment(machine: str) -> dict[str, str]:
    """Values of the environment markers on Linux of `machine`."""
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": f"{PYTHON}.12",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{PYTHON}.12",
        "python_version": PYTHON,
        "sys_platform": "linux",
    }


def wanted(markers: object) -> bool:
    """Whether a package with these markers is installed on any target; a table holds markers per group."""
    if markers is None:
        return True
    if isinstance(markers, dict):
        return any(wanted(marker) for marker in markers.values())
    return any(Marker(str(markers)).evaluate(environment(machine)) for machine in MACHINES)


def asked(requirement: object) -> list[str]:
    """Version constraints of one dependency entry that can hold on a target, whatever extras are chosen."""
    if isinstance(requirement, list):
        return [constraint for part in requirement for constraint in asked(part)]
    if not isinstance(requirement, dict):
        return [str(requirement)]
    markers = requirement.get("markers")
    if markers:
        extras = ["", *re.findall(r'extra == "([^"]+)"', markers)]
        marker = Marker(markers)
        if not any(marker.evaluate({**environment(m), "extra": e}) for m in MACHINES for e in extras):
            return []
    return [str(requirement["version"])]


def meets(version: str, constraints: list[str]) -> bool:
    """Whether `version` satisfies all constraints (Poetry: commas for and, `||` for or, `*` for any)."""
    return all(
        constraint == "*"
        or any(
            SpecifierSet(part.strip()).contains(version, prereleases=True) for part in constraint.split("||")
        )
        for constraint in constraints
    )


def loads(file: str) -> bool:
    """Whether any target can use this file: source archives always, wheels by their tags."""
    if not file.endswith(".whl"):
        return True
    python, abi, platform = (part.split(".") for part in file.removesuffix(".whl").split("-")[-3:])
    minor = int(PYTHON.split(".")[1])

    def interpreter(tag: str) -> bool:
        if tag in ("py3", f"py3{minor}"):
            return True
        found = re.fullmatch(r"cp3(\d+)", tag)
        return found is not None and (int(found[1]) == minor or ("abi3" in abi and int(found[1]) <= minor))

    def loader(tag: str) -> bool:
        return tag == "any" or (
            tag.startswith("manylinux") and tag.endswith(tuple("_" + m for m in MACHINES))
        )

    return (
        any(map(interpreter, python))
        and any(tag in ("none", "abi3", f"cp3{minor}") for tag in abi)
        and any(map(loader, platform))
    )


def without_unusable(package: dict[str, Any], block: str) -> str:
    """Return the text of a package without the files that no target can use."""
    unusable = {file["file"] for file in package["files"] if not loads(file["file"])}
    if package["files"] and len(unusable) == len(package["files"]):
        raise ValueError(
            f"no file of {package['name']} {package['version']} fits cp{PYTHON} on {', '.join(MACHINES)}"
        )
    return "".join(
        line
        for line in block.splitlines(keepends=True)
        if not ((found := re.match(r'\s*\{file = "([^"]+)"', line)) and found[1] in unusable)
    )


def prune(text: str) -> str:
    """Return the lock file without what no target uses. ValueError when two versions of a package stay."""
    end = text.index("\n[metadata]\n") if "\n[metadata]\n" in text else len(text)
    extras = text.find("\n[extras]\n")
    end = min(end, extras) if extras >= 0 else end
    head, *blocks = text[:end].split("[[package]]\n")
    packages = [(tomllib.loads("[[package]]\n" + block)["package"][0], block) for block in blocks]
    packages = [(package, block) for package, block in packages if wanted(package.get("markers"))]
    needs: dict[str, list[str]] = {}
    for package, _ in packages:
        for name, requirement in package.get("dependencies", {}).items():
            needs.setdefault(name.lower().replace("_", "-"), []).extend(asked(requirement))
    kept: dict[str, str] = {}
    for name in dict.fromkeys(package["name"] for package, _ in packages):
        same = [(package, block) for package, block in packages if package["name"] == name]
        if len(same) > 1:
            same = [(p, b) for p, b in same if meets(p["version"], needs.get(name, []))]
        if len(same) != 1:
            raise ValueError(f"{len(same)} versions of {name} fit {', '.join(MACHINES)}: narrow its markers")
        kept[name] = without_unusable(*same[0])
    return head + "".join("[[package]]\n" + block for block in kept.values()) + text[end:]


def main() -> int:
    """Write the pruned lock file, or compare it with the one that is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lock", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("poetry.lock"))
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when OUTPUT is not up to date"
    )
    arguments = parser.parse_args()
    text = prune(arguments.lock.read_text())
    if arguments.check:
        if arguments.output.read_text() == text:
            return 0
        print(f"{arguments.output} is not the pruned {arguments.lock}: run this without --check")
        return 1
    arguments.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

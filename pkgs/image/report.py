#!/usr/bin/env python3
"""Write sbom.cdx.json (CycloneDX 1.5) and licences.txt of an environment: report.py --help.

What is read: the metadata of every Python distribution, and the names of the store paths of the closure.
Fails when model weights are found: the image must never carry any, least of all the non-commercial drafter's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from email.parser import Parser
from pathlib import Path
from typing import Any

WEIGHTS = (".safetensors", ".gguf", ".pth", ".ckpt")
NOTE = """\
Weights are not part of this image.
  GLM-5.3-Flash-EXL3-TR3-4bpw   ShapleyMCG 1.0
  GLM-5.3-Flash-DFlash2         CC BY-NC-ND 4.0: non-commercial, never shipped, used only after you accept it
NVIDIA's CUDA libraries are under NVIDIA's own licence agreements.
"""


def licence(metadata: Any) -> str:
    """The licence that a distribution states: expression, classifiers or the first line of the field."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [
        c.split(" :: ")[-1] for c in metadata.get_all("Classifier", []) if c.startswith("License ::")
    ]
    if classifiers:
        return " AND ".join(sorted(classifiers))
    field = (metadata.get("License") or "").strip().splitlines()
    return field[0][:120] if field else "not stated"


def distributions(site_packages: Path) -> list[dict[str, str]]:
    """Name, version and licence of every distribution, by name."""
    found = []
    for folder in sorted(site_packages.glob("*.dist-info")):
        file = folder / "METADATA"
        if file.is_file():
            metadata = Parser().parsestr(file.read_text(encoding="utf-8", errors="replace"), headersonly=True)
            found.append(
                {
                    "name": str(metadata["Name"]),
                    "version": str(metadata["Version"]),
                    "licence": licence(metadata),
                }
            )
    return sorted(found, key=lambda one: one["name"].lower())


def store_packages(lines: list[str]) -> list[dict[str, str]]:
    """Name and version of store paths that have a version; Python packages are listed apart."""
    found = set()
    for line in lines:
        name = re.sub(r"^[a-z0-9]{32}-", "", line.strip().rsplit("/", 1)[-1])
        if (match := re.match(r"(.+?)-(\d[\w.+]*)", name)) and not name.startswith("python3."):
            found.add((match[1], match[2]))
    return [{"name": name, "version": version} for name, version in sorted(found)]


def weights(roots: list[Path]) -> list[Path]:
    """Files that look like model weights."""
    return [path for root in roots if root.is_dir() for path in root.rglob("*") if path.suffix in WEIGHTS]


def sbom(
    name: str, version: str, python: list[dict[str, str]], store: list[dict[str, str]]
) -> dict[str, Any]:
    """The bill of materials as CycloneDX."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": [
            {
                "type": "library",
                "name": one["name"],
                "version": one["version"],
                "purl": f"pkg:pypi/{one['name'].lower()}@{one['version']}",
                "licenses": [{"license": {"name": one["licence"]}}],
            }
            for one in python
        ]
        + [
            {
                "type": "library",
                "name": one["name"],
                "version": one["version"],
                "purl": f"pkg:nix/{one['name']}@{one['version']}",
            }
            for one in store
        ],
    }


def main() -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--site-packages", type=Path, required=True)
    parser.add_argument("--store-paths", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.store_paths.read_text().splitlines()
    if found := weights([arguments.site_packages, *map(Path, lines)]):
        print(f"model weights in the image: {found[0]}", file=sys.stderr)
        return 1
    python = distributions(arguments.site_packages)
    bill = sbom(arguments.name, arguments.version, python, store_packages(lines))
    (arguments.output / "sbom.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")
    rows = [f"{one['name']} {one['version']}: {one['licence']}" for one in python]
    (arguments.output / "licences.txt").write_text(NOTE + "\n" + "\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

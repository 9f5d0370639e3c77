#!/usr/bin/env python3
"""Compare rendered files (JSON: path -> text) with the golden folder: golden_check.py GOLDEN RENDERED."""

from __future__ import annotations

import difflib
import json
import re
import sys
from pathlib import Path

NOISE = re.compile(r'^(Environment="(LOCALE_ARCHIVE|PATH|TZDIR)=|X-Restart-Triggers=)')


def readable(text: str) -> str:
    """Unit text without hashes and versions of the store, without what NixOS adds to every unit."""
    text = re.sub(r"/nix/store/[a-z0-9]{32}-", "/nix/store/...-", text)
    return "\n".join(line for line in text.rstrip().splitlines() if not NOISE.match(line)) + "\n"


def without_versions(text: str) -> str:
    """Store names differ between package sets in their versions; the facts around them must not."""
    return re.sub(r"/nix/store/\.\.\.-[^/\s]+", "/nix/store/...", text)


def differences(golden: Path, rendered: dict[str, str]) -> list[str]:
    """Lines of a diff of every file that both sides must have."""
    lines: list[str] = []
    for path, text in sorted(rendered.items()):
        kept = golden / path
        before = kept.read_text() if kept.exists() else ""
        if path.endswith(".json"):
            same = kept.exists() and json.loads(before) == json.loads(text)
            lines += [] if same else [f"{path} differs"]
            continue
        one, two = (without_versions(side).splitlines() for side in (before, readable(text)))
        lines += difflib.unified_diff(one, two, f"golden/{path}", f"rendered/{path}", n=0)
    return lines


if __name__ == "__main__":
    found = differences(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
    print("\n".join(found) or "as in the golden files")
    sys.exit(bool(found))

"""Nix for the tests: where it is, where the evaluation tree is, one evaluation for all tests.

The evaluation tree is no part of the repository: a `lib` of nixpkgs, a NixOS module tree, a mock package
set and the sources of poetry2nix, nixos-dgx-spark and disko, under $NIXLAB (default ~/.cache/nixlab). Where
it is missing, tests that evaluate skip with one line, and only the syntax of every file is checked.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TREE = Path(os.environ.get("NIXLAB", Path.home() / ".cache/nixlab"))
PARTS = ("nixpkgs-mini/lib", "nixpkgs-mini/nixos", "nixpkgs-mini/pkgs", "p2n", "dgx", "disko")


def need_nix() -> str:
    """Path of nix-instantiate; skips where Nix is not installed."""
    found = shutil.which("nix-instantiate")
    if found is None:
        pytest.skip("Nix is not installed (Debian: nix-bin)")
    return found


def need_store() -> None:
    """Skips where Nix cannot write its store (evaluating puts files there)."""
    need_nix()
    store = Path("/nix/store")
    if os.geteuid() != 0 and not os.access(store if store.exists() else "/", os.W_OK):
        pytest.skip("the Nix store cannot be written by this user")


def need_tree() -> Path:
    """The evaluation tree; skips where it or Nix is missing."""
    need_store()
    missing = [part for part in PARTS if not (TREE / part).exists()]
    if missing:
        pytest.skip(f"no evaluation tree at $NIXLAB ({missing[0]} is missing)")
    return TREE


def environment() -> dict[str, str]:
    """Environment for Nix: a single-user store, no network, no settings of this machine."""
    settings = "\n".join(
        [
            "experimental-features = nix-command flakes",
            "sandbox = false",
            "build-users-group =",
            "substituters =",
            "flake-registry =",
            "connect-timeout = 2",
            "warn-dirty = false",
            "max-jobs = 2",
            "cores = 2",
            "extra-platforms = aarch64-linux",
        ]
    )
    return {
        **os.environ,
        "NIX_CONF_DIR": "/nonexistent",
        "NIX_USER_CONF_FILES": "/dev/null",
        "NIX_CONFIG": settings,
        "NIX_REMOTE": "local",
        "NIX_PATH": "",
    }


def run(*command: str, check: bool = True, cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    """Run a Nix command; on failure the end of its message is the test's message."""
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=cwd, check=False)
    if check and result.returncode:
        pytest.fail(f"{' '.join(command[:4])} ...\n{result.stderr[-4000:]}")
    return result


def evaluate(file: Path, attribute: str = "") -> Any:
    """Value of `attribute` of a Nix file that is a function of `tree`, as JSON."""
    command = ["nix-instantiate", "--eval", "--strict", "--json", str(file), "--arg", "tree", str(TREE)]
    if attribute:
        command += ["-A", attribute]
    return json.loads(run(*command).stdout)


def build(file: Path, attribute: str) -> Path:
    """Build `attribute` of a Nix file and return its path in the store."""
    out = run(
        "nix-build", "--no-out-link", str(file), "--arg", "tree", str(TREE), "-A", attribute, cwd=HERE
    ).stdout
    return Path(out.split()[-1])


def sources() -> str:
    """Digest of every file that an evaluation reads."""
    digest = hashlib.sha256(str(TREE).encode())
    folders = ("pkgs", "modules", "hosts", "tests/nix", "patches", "python/src/sparkloom/units")
    files = [
        REPO / "flake.nix",
        REPO / "python/pyproject.toml",
        *sorted((REPO / "python").glob("src/**/*.json")),
    ]
    for folder in folders:
        files += [path for path in sorted((REPO / folder).rglob("*")) if path.suffix != ".pyc"]
    for path in files:
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def facts(name: str) -> Any:
    """What tests/nix/NAME.nix evaluates to; computed once for all test processes of this run."""
    need_tree()
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"sparkloom-nix-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / f"{name}-{sources()}.json"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for old in folder.glob(f"{name}-*.json"):
                old.unlink()
            kept.write_text(json.dumps(evaluate(HERE / f"{name}.nix")))
    return json.loads(kept.read_text())

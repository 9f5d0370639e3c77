"""Nix' own check of the flake: every output of every system evaluates, inputs from the evaluation tree."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from nixlab import HERE, REPO, TREE, environment, evaluate, need_tree

pytestmark = pytest.mark.heavy  # 10 to 15 s of one core

SOURCES = (
    "cutlass",
    "deepgemm",
    "deepselect",
    "flash-attention",
    "flashkda",
    "flashmla",
    "msa",
    "qutlass",
    "tml-fa4",
)


def modern() -> str | None:
    """A Nix of 2023 or later, whose language the machine tests of nixpkgs need."""
    for program in (str(TREE / "nix-instantiate"), shutil.which("nix-instantiate")):
        if program and Path(program).exists():
            out = subprocess.run(
                [program, "--eval", "-E", "builtins ? readFileType"],
                capture_output=True,
                text=True,
                env=environment(),
                check=False,
            )
            if out.stdout.strip() == "true":
                return program
    return None


def test_flake_check(tmp_path: Path) -> None:
    need_tree()
    # A copy of what git knows and what is new, as `git+file:` would see it after `git add`.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    flake = tmp_path / "flake"
    for name in filter(None, listed.stdout.split("\0")):
        if (REPO / name).is_file():
            (flake / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, flake / name)
    # The sources of vLLM's build are never read while evaluating.
    empty = tmp_path / "empty"
    empty.mkdir()
    inputs = {
        "nixpkgs": TREE / "nixpkgs-mini",
        "poetry2nix": TREE / "p2n",
        "nixos-dgx-spark": TREE / "dgx",
        "disko": TREE / "disko",
    } | dict.fromkeys(SOURCES, empty)
    command = ["nix", "flake", "check", "--no-build", "--no-write-lock-file", f"path:{flake}"]
    helped = subprocess.run(["nix", "flake", "check", "--help"], capture_output=True, text=True, check=False)
    if "--all-systems" in helped.stdout:
        command.append("--all-systems")  # older ones check all systems anyway
    for name, path in inputs.items():
        command += ["--override-input", name, f"path:{path}"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert result.returncode == 0, result.stderr[-4000:]


def test_outputs_are_the_promised_ones() -> None:
    need_tree()
    found = evaluate(HERE / "outputs.nix")
    for system in ("aarch64-linux", "x86_64-linux"):
        assert {"default", "sparkloom", "demo", "preflight", "update-pins"} <= set(found["apps"][system])
        packages = {
            "kernels",
            "sparkloom-kernels",
            "vllm",
            "vllm-wheel",
            "exllamav3",
            "flashinfer",
            "python-env",
            "sparkloom",
            "image",
        }
        assert packages <= set(found["packages"][system])
        assert found["shells"][system] == ["default"]
        assert {"hosts", "rendered", "assertions", "cuda", "kernels", "python", "rules"} <= set(
            found["checks"][system]
        )
    assert set(found["modules"]) == {
        "default",
        "fabric",
        "host",
        "gateway",
        "monitoring",
        "dgx-spark",
        "disko",
    }
    assert set(found["hosts"]) == {"spark-head", "spark-worker"}
    assert "pair" in found["templates"]
    assert found["overlays"] == ["default"]


def test_machine_tests_evaluate() -> None:
    need_tree()
    program = modern()
    if program is None:
        pytest.skip("the machine tests of nixpkgs need a Nix of 2023 or later")
    expression = (
        f"let f = import {HERE}/flake.eval.nix {{ tree = {TREE}; }}; "
        "in { inherit (f.checks.x86_64-linux) pair gateway; }"
    )
    command = [
        program,
        "--eval",
        "--strict",
        "--json",
        "-E",
        f"builtins.mapAttrs (_: t: t.drvPath) ({expression})",
    ]
    out = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert out.returncode == 0, out.stderr[-3000:]
    assert set(json.loads(out.stdout)) == {"pair", "gateway"}


def test_rendered_check_passes_and_fails_when_it_must(tmp_path: Path) -> None:
    from golden_check import differences

    golden = HERE / "golden"
    unit = (golden / "spark-head/sparkloom-agent.service").read_text()
    real = unit.replace(
        "/nix/store/...-sparkloom-env-", "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-sparkloom-env-9"
    )
    assert differences(golden, {"spark-head/sparkloom-agent.service": real}) == []
    changed = real.replace("LimitMEMLOCK=infinity", "LimitMEMLOCK=8M")
    assert differences(golden, {"spark-head/sparkloom-agent.service": changed})
    assert differences(golden, {"spark-head/cluster.json": "{}"})

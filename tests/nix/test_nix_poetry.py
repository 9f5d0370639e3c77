"""python/poetry.lock: what it locks, that it fits pyproject.toml, and the pruned copy for poetry2nix."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from hashlib import sha256
from typing import Any

import pytest
from nixlab import REPO
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PYTHON = REPO / "python"
LOCK_TEXT = (PYTHON / "poetry.lock").read_text()
LOCK = tomllib.loads(LOCK_TEXT)
PYPROJECT = tomllib.loads((PYTHON / "pyproject.toml").read_text())
PACKAGES = {(package["name"], package["version"]): package for package in LOCK["package"]}


def load_prune() -> Any:
    spec = importlib.util.spec_from_file_location("prune", REPO / "pkgs/python-env/prune.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def content_hash(pyproject: dict[str, Any]) -> str:
    """Poetry's digest of what decides the resolution (poetry 2: sorted JSON of the relevant tables)."""
    project = {
        key: pyproject["project"][key]
        for key in ("requires-python", "dependencies", "optional-dependencies")
        if key in pyproject["project"]
    }
    poetry = {
        key: pyproject["tool"]["poetry"][key]
        for key in ("dependencies", "source", "extras", "dev-dependencies", "group")
        if key in pyproject["tool"]["poetry"]
    }
    relevant = {"project": project, "tool": {"poetry": poetry}}
    return sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()


def test_lock_belongs_to_pyproject() -> None:
    assert LOCK["metadata"]["content-hash"] == content_hash(PYPROJECT), (
        "dependencies in pyproject.toml changed: run `poetry lock` in python/, then pkgs/python-env/prune.py"
    )


def test_product_versions() -> None:
    for name, version in (("vllm", "0.33.0"), ("torch", "2.14.0"), ("exllamav3", "1.6.5")):
        assert (name, version) in PACKAGES


@pytest.mark.parametrize("name", ["vllm", "torch", "numba", "nvidia-nccl-cu13"])
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_wheels_of_both_machines(name: str, machine: str) -> None:
    files = [file["file"] for key, package in PACKAGES.items() if key[0] == name for file in package["files"]]
    assert any(file.endswith(f"{machine}.whl") for file in files)


def test_nccl_is_new_enough() -> None:
    version = next(version for name, version in PACKAGES if name == "nvidia-nccl-cu13")
    assert tuple(map(int, version.split("."))) >= (2, 29, 3), "older NCCL can deadlock on aarch64"


def test_no_registry_in_the_lock() -> None:
    assert "source" not in PYPROJECT["tool"]["poetry"]
    assert not re.search(r"^(url|reference) = ", LOCK_TEXT, re.M)
    assert "[package.source]" not in LOCK_TEXT


def test_both_tables_of_pyproject_agree() -> None:
    project, poetry = PYPROJECT["project"], PYPROJECT["tool"]["poetry"]
    assert (poetry["name"], poetry["version"]) == (project["name"], project["version"])
    theirs = dict(poetry["dependencies"])
    python = theirs.pop("python")
    ours = {Requirement(text).name: Requirement(text).specifier for text in project["dependencies"]}
    assert {name: SpecifierSet(text) for name, text in theirs.items()} == ours
    # The lock is for one interpreter inside the range that the project supports.
    assert python == LOCK["metadata"]["python-versions"] == ">=3.12,<3.13"
    assert SpecifierSet(project["requires-python"]).contains("3.12.0")


def test_pruned_lock_is_up_to_date() -> None:
    pruned = (REPO / "pkgs/python-env/poetry.lock").read_text()
    assert pruned == load_prune().prune(LOCK_TEXT), (
        "run pkgs/python-env/prune.py python/poetry.lock after every change of the lock"
    )


def test_pruned_lock_has_one_version_each() -> None:
    packages = tomllib.loads((REPO / "pkgs/python-env/poetry.lock").read_text())["package"]
    names = [package["name"] for package in packages]
    assert len(names) == len(set(names))
    assert {"triton": "3.8.0", "nvidia-cublas": "13.1.1.3"}.items() <= {
        package["name"]: package["version"] for package in packages
    }.items()


HEAD = "# generated\n\n"
TAIL = '\n[metadata]\nlock-version = "2.1"\n'


def entry(name: str, version: str, files: list[str], extra: str = "") -> str:
    listed = "".join(f'    {{file = "{file}", hash = "sha256:00"}},\n' for file in files)
    return f'[[package]]\nname = "{name}"\nversion = "{version}"\n{extra}files = [\n{listed}]\n\n'


def test_prune_drops_versions_for_other_platforms() -> None:
    text = (
        HEAD
        + entry("triton", "3.8.0", ["triton-3.8.0-cp312-cp312-manylinux_2_27_aarch64.whl"])
        + entry("triton", "3.9.0", ["triton-3.9.0.tar.gz"], 'markers = "platform_system == \\"Darwin\\""\n')
        + TAIL
    )
    pruned = load_prune().prune(text)
    assert "3.8.0" in pruned
    assert "3.9.0" not in pruned
    assert pruned.endswith(TAIL)


def test_prune_drops_wheels_that_no_target_loads() -> None:
    keep = [
        "markupsafe-3.0.4-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.manylinux_2_28_aarch64.whl",
        "markupsafe-3.0.4-cp312-cp312-manylinux_2_28_x86_64.whl",
        "markupsafe-3.0.4-cp38-abi3-manylinux_2_28_x86_64.whl",
        "markupsafe-3.0.4-py3-none-any.whl",
        "markupsafe-3.0.4.tar.gz",
    ]
    drop = [
        "markupsafe-3.0.4-cp312-cp312-manylinux_2_31_riscv64.whl",
        "markupsafe-3.0.4-cp313-cp313-manylinux_2_28_x86_64.whl",
        "markupsafe-3.0.4-cp312-cp312-musllinux_1_2_x86_64.whl",
        "markupsafe-3.0.4-cp312-cp312-win_amd64.whl",
        "markupsafe-3.0.4-cp312-cp312t-manylinux_2_28_x86_64.whl",
    ]
    pruned = load_prune().prune(HEAD + entry("markupsafe", "3.0.4", [*keep, *drop]) + TAIL)
    assert all(file in pruned for file in keep)
    assert not any(file in pruned for file in drop)


def test_prune_takes_the_version_that_the_others_ask_for() -> None:
    toolkit = entry("cuda-toolkit", "13.0.3", ["cuda_toolkit-13.0.3-py3-none-any.whl"]) + (
        '[package.dependencies]\nnvidia-cublas = {version = "==13.1.1.3.*", optional = true, '
        'markers = "sys_platform == \\"linux\\" and extra == \\"cublas\\""}\n\n'
    )
    text = (
        HEAD
        + entry("nvidia-cublas", "13.1.1.3", ["nvidia_cublas-13.1.1.3-py3-none-manylinux_2_27_aarch64.whl"])
        + entry("nvidia-cublas", "13.10.0.20", ["nvidia_cublas-13.10.0.20-py3-none-any.whl"])
        + toolkit
        + TAIL
    )
    pruned = load_prune().prune(text)
    assert 'version = "13.1.1.3"' in pruned
    assert "13.10.0.20" not in pruned


def test_prune_refuses_what_it_cannot_decide() -> None:
    twice = entry("a", "1.0", ["a-1.0.tar.gz"]) + entry("a", "2.0", ["a-2.0.tar.gz"])
    with pytest.raises(ValueError, match="2 versions of a fit"):
        load_prune().prune(HEAD + twice + TAIL)
    alien = entry("b", "1.0", ["b-1.0-cp312-cp312-win_amd64.whl"])
    with pytest.raises(ValueError, match=r"no file of b 1\.0 fits"):
        load_prune().prune(HEAD + alien + TAIL)

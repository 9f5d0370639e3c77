"""Derivations really built: kernels, command line, image and its reports, on this machine's own tools."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from nixlab import HERE, REPO, TREE, build, evaluate, need_tree, run

pytestmark = pytest.mark.heavy  # nvcc for a minute, and an environment from wheels

BUILDS = HERE / "builds.nix"
LOCKED = {
    file["file"]: file["hash"].removeprefix("sha256:")
    for package in tomllib.loads((REPO / "pkgs/python-env/poetry.lock").read_text())["package"]
    for file in package["files"]
}


@pytest.fixture(scope="module")
def wheels() -> None:
    """Put the wheels of the lock into the store: a derivation of that name and hash is then there already."""
    need_tree()
    folder = TREE / "wheels"
    folder.mkdir(exist_ok=True)
    for wheel in evaluate(BUILDS, "wheels"):
        path = folder / wheel["file"]
        if not path.exists():
            target = "--python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none"
            for platform in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
                target += f" --platform {platform}_x86_64"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary", ":all:", *target.split(), "--dest", str(folder)]
            command.append(f"{wheel['pname']}=={wheel['version']}")
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                pytest.skip(
                    f"pip cannot bring {wheel['file']}: {result.stderr.strip().splitlines()[-1][:120]}"
                )
        assert path.exists(), f"pip chose another file than {wheel['file']}"
        assert hashlib.sha256(path.read_bytes()).hexdigest() == LOCKED[wheel["file"]]
        run("nix-store", "--add-fixed", "sha256", str(path))


def test_kernels_are_built_for_the_gb10() -> None:
    need_tree()
    if not Path("/usr/local/cuda-13.0/bin/nvcc").exists():
        pytest.skip("no CUDA 13.0 on this machine")
    # The derivation itself refuses a library without sm_121a code.
    library = build(BUILDS, "kernels") / "lib/libexl3.a"
    assert b"sm_121a" in library.read_bytes()


def test_command_line_is_built(wheels: None) -> None:
    site = build(BUILDS, "sparkloom") / "lib/python3.12/site-packages"
    assert (site / "sparkloom/cli/main.py").is_file()
    assert (site / "sparkloom/cluster/cluster.schema.json").is_file()
    assert (site / "sparkloom/units/facts.json").is_file()
    entry = next(site.glob("sparkloom-*.dist-info")) / "entry_points.txt"
    assert "exl3 = sparkloom.vllm:register" in entry.read_text()


def test_image_is_built(wheels: None, tmp_path: Path) -> None:
    script = build(BUILDS, "image")
    archive = tmp_path / "image.tar"
    with open(archive, "wb") as out:
        subprocess.run([str(script)], stdout=out, check=True)
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        names = []
        for member in manifest["Layers"]:
            with tarfile.open(fileobj=tar.extractfile(member)) as layer:
                names += layer.getnames()
    inside = config["config"]
    assert inside["Entrypoint"] == ["/bin/sparkloom", "agent"]
    assert inside["User"].split(":")[0] not in ("", "0", "root")
    assert "NVIDIA_VISIBLE_DEVICES=all" in inside["Env"]
    assert any(name.endswith("bin/sparkloom") for name in names)
    assert any(name.endswith("share/sparkloom/sbom.cdx.json") for name in names)
    assert not any(name.endswith((".safetensors", ".gguf")) for name in names)


def works(program: str) -> bool:
    """Whether a program answers `--version` (a shim of a version manager may be there and not work)."""
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def test_command_line_runs_on_the_locked_interpreter(wheels: None) -> None:
    candidates = [
        *map(str, Path.home().glob(".pyenv/versions/3.12*/bin/python3.12")),
        shutil.which("python3.12"),
    ]
    python = next((name for name in candidates if name and works(name)), None)
    if python is None:
        pytest.skip("no Python 3.12 on this machine")
    command = build(BUILDS, "sparkloom")
    closure = run("nix-store", "--query", "--requisites", str(command)).stdout.split()
    sites = [Path(path) / "lib/python3.12/site-packages" for path in closure]
    path = ":".join(str(site) for site in sites if site.is_dir())
    result = subprocess.run(
        [python, "-m", "sparkloom", "--help"],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "validate" in result.stdout


def test_reports(wheels: None) -> None:
    folder = build(BUILDS, "report") / "share/sparkloom"
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    components = {one["name"]: one for one in bill["components"]}
    assert components["aiohttp"]["licenses"][0]["license"]["name"] != "not stated"
    assert components["sparkloom"]["version"] == bill["metadata"]["component"]["version"]
    text = (folder / "licences.txt").read_text()
    assert "CC BY-NC-ND 4.0" in text
    assert "pydantic" in text


def test_serving_environment_is_cuda_13_only() -> None:
    need_tree()
    assert evaluate(BUILDS, "cuda") == "13.0"
    names = evaluate(BUILDS, "environment")
    assert {"vllm", "torch", "nvidia-nccl-cu13", "nvidia-cutlass-dsl-libs-cu13"} <= set(names)
    assert not [name for name in names if name.endswith(("-cu12", "-cu11"))]


def test_vllm_is_built_from_the_locked_source_for_one_chip() -> None:
    need_tree()
    found = evaluate(BUILDS, "vllm")
    assert found["version"] == "0.33.0"
    assert found["source"] == "vllm-0.33.0.tar.gz"
    assert found["arch"] == "12.1a"
    assert found["wheel"].startswith("vllm-0.33.0-cp38-abi3-manylinux")
    # Every source that vLLM's CMake files would download has its folder.
    assert len(found["folders"]) == 10


def test_flashinfer_has_its_modules_compiled_for_one_chip() -> None:
    """Evaluated only: compiling takes nvcc and torch."""
    need_tree()
    found = evaluate(BUILDS, "flashinfer")
    assert (found["version"], found["gpuTarget"]) == ("0.7.2.post1", "12.1a")
    assert "FLASHINFER_CUDA_ARCH_LIST=12.1a" in found["postInstall"]
    assert "compile.py" in found["postInstall"]
    assert found["inside"]

"""What the pinned ExLlamaV3 must have so that it can be compiled ahead of time without a patch."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LOCK = Path(__file__).parents[2] / "python/poetry.lock"
VERSION = "1.6.5"
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("exllamav3")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--retries=1", "--timeout=20", "--dest", str(folder), f"exllamav3=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"exllamav3 {VERSION} could not be fetched: {done.stderr.strip().splitlines()[-1]}")
    path = next(folder.glob("*.whl"))
    assert f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in LOCK.read_text()
    return zipfile.ZipFile(path)


def test_it_is_for_any_machine_and_holds_the_sources(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert str(wheel.filename).endswith("-py3-none-any.whl")
    assert sum(name.endswith(".cu") for name in names) > 100
    assert not [name for name in names if name.endswith((".so", "setup.py"))]


def test_a_compiled_extension_comes_first(wheel: zipfile.ZipFile) -> None:
    loader = wheel.read("exllamav3/ext.py").decode()
    assert loader.index("import exllamav3_ext") < loader.index("else:\n") < loader.index("load(\n")


def test_the_given_target_is_kept(wheel: zipfile.ZipFile, monkeypatch: pytest.MonkeyPatch) -> None:
    source = wheel.read("exllamav3/util/arch_list.py").decode().replace("import torch\n", "")
    torch = SimpleNamespace(version=SimpleNamespace(hip=None, cuda="13.0"))  # asking for a device would fail
    space: dict[str, Any] = {"torch": torch}
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "12.1a")
    exec(source, space)
    space["maybe_set_arch_list_env"]()
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "12.1a"


def test_x86_headers_stand_behind_a_guard(wheel: zipfile.ZipFile) -> None:
    found = []
    for name in wheel.namelist():
        if not name.endswith((".cpp", ".h", ".cu", ".cuh")):
            continue
        text = wheel.read(name).decode(errors="replace")
        for hit in re.finditer(r"#include <(?:immintrin|x86intrin|cpuid)\.h>", text):
            found.append(name)
            assert re.search(r"#\s*if[^\n]*__x86_64__", text[: hit.start()]), name
    assert found

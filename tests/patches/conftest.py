"""The pinned vLLM's Python files, fetched once, stock and with the whole series applied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "patches/vllm"
SERIES = (FOLDER / "series").read_text().split()


@pytest.fixture(scope="session")
def vllm_source() -> Path:
    """Folder with `vllm/`, as the pinned wheel has it (SPARKLOOM_VLLM_SOURCE names another place)."""
    if given := os.environ.get("SPARKLOOM_VLLM_SOURCE"):
        return Path(given)
    command = [sys.executable, str(FOLDER / "fetch.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 6:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sparkloom/sources/vllm-0.33.0"


@pytest.fixture(scope="session")
def patched_vllm(vllm_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the series applied, each patch where it says and with zero fuzz."""
    root = tmp_path_factory.mktemp("vllm")
    shutil.copytree(vllm_source / "vllm", root / "vllm")
    for name in SERIES:
        command = ["patch", "-p1", "-F0", "--no-backup-if-mismatch", "-i", str(FOLDER / name)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "offset" not in done.stdout, done.stdout
    return root


@pytest.fixture(scope="session")
def run_in() -> Callable[..., str]:
    """Run Python code with a vLLM tree in front, on the CPU; what it prints (no compiled parts)."""

    def run(tree: Path, code: str, patches: str = "{}") -> str:
        start = (
            f"import sys; sys.path.insert(0, {str(tree)!r})\n"
            "from sparkloom.vllm.serve import answer_for_vllm; answer_for_vllm()\n"
            "import vllm.transformers_utils.config\n"
            "from sparkloom.vllm.cpu.no_torchvision import apply; apply()\n"
        )
        env = os.environ | {"SPARKLOOM_PATCHES": patches, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
        command = [sys.executable, "-c", start + code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run

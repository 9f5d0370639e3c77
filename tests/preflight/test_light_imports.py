"""Checks start fast: none of them imports an engine or a compiler."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fixtures.spark_tree import good_spark

HEAVY = ("torch", "vllm", "numba", "transformers", "matplotlib")
CODE = (
    "import sys; from sparkloom.cli.main import run; code = run(sys.argv[1:]);"
    "import json; print('\\n' + json.dumps([code, sorted({m.split('.')[0] for m in sys.modules})]))"
)


@pytest.mark.parametrize("command", ["fabric", "preflight", "doctor", "weights", "capture"])
def test_no_heavy_import(tmp_path, cluster_file, command):
    root = good_spark().write(tmp_path / "tree")
    args = {
        "fabric": ["show", "--root", root],
        "preflight": [cluster_file, "--node", "head", "--root", root],
        "doctor": [cluster_file, "--node", "head", "--root", root],
        "weights": ["status", cluster_file],
        "capture": [tmp_path / "out.tar", "--root", root],
    }[command]
    argv = [sys.executable, "-c", CODE, command, *map(str, args), "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code in (0, 3), done.stdout
    assert not set(HEAVY) & set(modules)

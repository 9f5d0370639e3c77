"""The commands that decide things start fast: nothing heavy is imported on their paths."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "vllm", "numba", "numpy", "transformers", "matplotlib", "safetensors", "huggingface_hub"}
HEAVY |= {"aiohttp", "httpx"}
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "cluster.json"
COMMANDS = [
    ["schema"],
    ["validate", str(EXAMPLE)],
    ["plan", str(EXAMPLE)],
    ["render", str(EXAMPLE), "--node", "spark-head"],
    ["explain", str(EXAMPLE)],
]
CODE = """
import json, sys
from sparkloom.cli.main import run
codes = [run(command) for command in json.loads(sys.argv[1])]
print("MODULES", json.dumps([codes, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_nothing_heavy_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(COMMANDS)], capture_output=True, text=True, check=True
    )
    codes, modules = json.loads(done.stdout.rpartition("MODULES ")[2])
    assert codes == [0] * len(COMMANDS), done.stderr
    assert not HEAVY & set(modules)

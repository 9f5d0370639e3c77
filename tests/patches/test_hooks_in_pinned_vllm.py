"""Every hook, installed in the pinned vLLM itself: what it then does is what the CPU's vLLM does with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.vllm.hooks.install import HOOKS

INSIDE = Path(__file__).parents[1] / "vllm/hooks/inside.py"
OPTIONS = {
    "stop_strings_after_reasoning": True,
    "key_on_all_routes": True,
    "default_new_tokens": 64,
    "per_request_no_store": True,
    "keep_prefix_share": 0.5,
    "spin_window_ms": 16,
    "pdl_gate": True,
    "draft_kv_block_tokens": 2304,
    "adaptive_verify_width": True,
    "dense_quantization": True,
}
# The API server's modules import a JSON library that the CPU's vLLM does not bring; none of this calls it.
CODE = """
import json, runpy, types
sys.modules["orjson"] = types.ModuleType("orjson")
sys.argv = [{path!r}, {options!r}]
runpy.run_path({path!r}, run_name="__main__")
"""


def test_no_hook_is_left_out() -> None:
    assert set(OPTIONS) == set(HOOKS)


@pytest.mark.heavy
def test_hooks_do_their_work_in_the_pinned_version(vllm_source: Path, run_in: Callable[..., str]) -> None:
    pytest.importorskip("vllm", reason="no vLLM is installed: its dependencies are missing")
    options = json.dumps({**OPTIONS, "fair_prefill": "fair"})
    out = run_in(vllm_source, CODE.format(path=str(INSIDE), options=options))
    found = json.loads(out.splitlines()[-1])
    assert {tuple(map(json.dumps, batching)) for batching in found["stops"]} == {
        (
            '["STOP", "aSTOPb</think>bc", 7]',
            '["STOP", "a", 2]',
            '["STOP", "<think>STOP</think>a", 5]',
            '[null, "STOP</think>a", 3]',
            '["STOP", "STOP</think>STOP", 3]',
        )
    }
    assert {path for path, (bare, _) in found["routes"].items() if bare == 200} == {"/health", "/metrics"}
    assert found["new_tokens"][:4] == [64, 900, 64, 7]
    assert found["hits"] == [[0, 12], [0, 0]]
    assert found["kept"] == {"hits": [0, 12, 12, 12, 0, 12], "full": 0, "left": 16, "reset": True, "kept": 0}
    assert found["spin"] == pytest.approx(0.016)

"""A smaller block for the drafter: what vLLM 0.33's own planner and cache manager make of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.plan import kv
from sparkloom.vllm.hooks.draft_block import smaller
from sparkloom.vllm.hooks.shape import HookRefused

CODE = Path(__file__).with_name("draft_block_inside.py")
POOL = 25_000_000_000


@dataclasses.dataclass(frozen=True)
class Spec:
    block_size: int
    page_size_padded: int | None = None


def test_the_block_must_divide_both_others() -> None:
    assert smaller(Spec(4608), 4608, 2304) == Spec(2304)
    assert smaller(Spec(2304), 4608, 1152) == Spec(1152)
    with pytest.raises(HookRefused, match=r"2000 does not divide .* take one of \[256, .*2304, 4608\]"):
        smaller(Spec(4608), 4608, 2000)
    with pytest.raises(HookRefused, match="take one of"):
        smaller(Spec(1536), 4608, 2304)
    with pytest.raises(HookRefused, match="pads"):
        smaller(Spec(4608, 9216), 4608, 2304)


@pytest.mark.heavy
def test_more_blocks_and_no_row_lost(vllm_source: Path, run_in: Callable[..., str]) -> None:
    """Stock, then with the option: pool blocks pinned and equal to our planner's, the same prefix hits."""
    pytest.importorskip("vllm", reason="no vLLM is installed: its dependencies are missing")
    code = f"import runpy; runpy.run_path({str(CODE)!r}, run_name='__main__')\n"
    out = run_in(vllm_source, code, json.dumps({"draft_kv_block_tokens": 2304}))
    stock, hooked = json.loads(out.rpartition("FOUND ")[2])
    assert (stock["blocks"], stock["stride"], stock["sizes"]) == (529, 47_185_920, [4608, 4608])
    assert (hooked["blocks"], hooked["stride"], hooked["sizes"]) == (715, 34_924_032, [4608, 2304])
    for found, block in ((stock, None), (hooked, 2304)):
        ours = kv.layout(world=2, drafter="dflash2", draft_tokens=7, draft_block_tokens=block)
        assert found["blocks"] == ours.pool_blocks(POOL)
        assert found["most"] <= ours.draft_prefill_blocks + 1  # and the one whose turn to be freed it is
        assert found["disjoint"]  # no two pages share a byte
        assert (found["lost"], found["shared"], found["leaked"]) == (0, 0, 0)
        assert found["hits"] == [0, 5 * 4608]  # of a prompt of 30,000 tokens and what was answered

"""Our KV layout against vLLM's own grouping code, at the model's true sizes.

The code is that of the installed vLLM; it groups specs without touching a device.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from sparkloom.plan import geometry as geo
from sparkloom.plan import kv

CASES: list[dict[str, Any]] = [
    {"world": 2, "drafter": "dflash2", "draft_tokens": 7},
    {"world": 2, "drafter": "dflash2", "draft_tokens": 7, "draft_block_tokens": 2304},
    {"world": 2, "drafter": "dflash2", "draft_tokens": 7, "draft_block_tokens": 1536},
    {"world": 2, "drafter": "dflash2", "draft_tokens": 3},
    {"world": 2, "drafter": "mtp", "draft_tokens": 2},
    {"world": 2, "drafter": "none", "draft_tokens": 0},
    {"world": 1, "drafter": "dflash2", "draft_tokens": 7},
    {"world": 4, "drafter": "dflash2", "draft_tokens": 7},
    {"world": 4, "drafter": "mtp", "draft_tokens": 1},
]
CODE = """
import json, sys
from types import SimpleNamespace as N
from sparkloom.vllm.serve import answer_for_vllm
answer_for_vllm()
import torch
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import CircularBufferSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

out = []
for case in json.load(sys.stdin):
    block, g, specs = case["block"], case["geometry"], {}
    mla = g["mla_layers"] + (case["drafter"] == "mtp")
    for i in range(g["kda_layers"]):
        specs[f"kda.{i}"] = MambaSpec(
            block_size=block, shapes=tuple(map(tuple, case["shapes"])),
            dtypes=(torch.bfloat16, torch.float32), mamba_cache_mode="align",
            num_speculative_blocks=case["draft_tokens"], num_prefill_checkpoint_blocks=1)
    for i in range(mla):
        common = dict(block_size=block, num_kv_heads=1, dtype=torch.uint8)
        specs[f"mla.{i}"] = MLAAttentionSpec(
            head_size=656, state_content_bytes=656, cache_dtype_str="fp8_ds_mla", **common)
        specs[f"index.{i}"] = MLAAttentionSpec(
            head_size=132, state_content_bytes=132, tokens_per_state=4, cache_dtype_str="fp8_ds_mla",
            **common)
        specs[f"tail.{i}"] = CircularBufferSpec(
            block_size=case["slots"], num_kv_heads=1, head_size=128, dtype=torch.bfloat16)
    if case["drafter"] == "dflash2":
        for i in range(5):
            specs[f"draft.{i}"] = SlidingWindowSpec(
                block_size=case["draft_block"], num_kv_heads=case["kv_heads"], head_size=128,
                dtype=torch.bfloat16, sliding_window=2048)
    cache = N(get_resolved_kv_cache_layout=lambda: N(is_block_outermost=True),
              enable_prefix_caching=True, mamba_cache_mode="align")
    config = N(scheduler_config=N(disable_hybrid_kv_cache_manager=False), cache_config=cache,
               speculative_config=None, attention_config=N(hisparse_config=None), kv_transfer_config=None,
               parallel_config=N(decode_context_parallel_size=1), model_config=None)
    groups = get_kv_cache_groups(config, specs)
    sizes = [sum(specs[n].page_size_bytes for n in group.layer_names) for group in groups]
    out.append({
        "groups": sorted((len(group.layer_names), size) for group, size in zip(groups, sizes)),
        "states": sum(specs[group.layer_names[0]].max_memory_usage_bytes(config)
                      // specs[group.layer_names[0]].page_size_bytes
                      for group in groups if group.layer_names[0].startswith("kda")),
    })
print("GROUPS", json.dumps(out))
"""


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_groups_are_those_of_vllm() -> None:
    g = geo.GLM_FLASH
    questions = []
    for case in CASES:
        block = kv.block_tokens(g, case["world"], case["draft_tokens"])
        inner = g.heads // case["world"] * g.kda_head_dim
        questions.append(
            {
                **case,
                "geometry": asdict(g),
                "block": block,
                "draft_block": case.get("draft_block_tokens") or block,
                "kv_heads": geo.DFLASH2.kv_heads // case["world"],
                "slots": kv.tail_slots(g, case["draft_tokens"]),
                "shapes": [
                    [g.conv_kernel - 1 + case["draft_tokens"], 3 * inner],
                    [g.heads // case["world"], g.kda_head_dim, g.kda_head_dim],
                ],
            }
        )
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(questions), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for case, answer in zip(CASES, json.loads(done.stdout.rpartition("GROUPS ")[2]), strict=True):
        ours = kv.layout(**case)
        assert sorted([group.layers, group.bytes_per_block] for group in ours.groups) == answer["groups"], (
            case
        )
        assert ours.stride_bytes == max(size for _, size in answer["groups"]), case
        assert ours.state_blocks == answer["states"], case

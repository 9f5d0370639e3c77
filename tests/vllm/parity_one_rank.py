"""Run by test_parity_tiny.py in a process of its own: one rank, sound and then broken in three ways.

usage: parity_one_rank.py CHECKPOINT PROMPTS.json OUT.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

TOKENS, BROKEN_TOKENS = 64, 16


def main(checkpoint: str, prompts: str, out: str) -> None:
    from vllm import LLM

    from sparkloom.vllm.sources import from_engine

    llm = LLM(
        checkpoint,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
    )
    asked = json.loads(Path(prompts).read_text())
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    layers = worker.model_runner.model.model.layers
    kernel = layers[2].mlp.experts.routed_experts.quant_method.kernel
    sound = kernel.tensors, kernel.spec
    found = {}
    for name, spoil in (("sound", None), *BREAKS.items()):
        kernel.tensors, kernel.spec = sound if spoil is None else spoil(*sound)
        kernel.cached._items.clear()
        kernel.cached.bytes = 0
        tokens = TOKENS if spoil is None else BROKEN_TOKENS
        found[name] = [dataclasses.asdict(one) for one in from_engine(llm, asked, tokens)]
    Path(out).write_text(json.dumps(found))


def swap_experts(tensors: Any, spec: Any) -> tuple[Any, Any]:
    """Two experts' down shards change places in one layer."""
    swapped = tensors.w2_trellis.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    return dataclasses.replace(tensors, w2_trellis=swapped), spec


def drop_suh(tensors: Any, spec: Any) -> tuple[Any, Any]:
    """The input scales of the down projections are ones in one layer."""
    import torch

    return dataclasses.replace(tensors, w2_suh=torch.ones_like(tensors.w2_suh)), spec


def wrong_codebook(tensors: Any, spec: Any) -> tuple[Any, Any]:
    """One layer is decoded with the codebook of another."""
    return tensors, dataclasses.replace(spec, codebook="3inst")


BREAKS = {"swapped experts": swap_experts, "dropped suh": drop_suh, "wrong codebook": wrong_codebook}

if __name__ == "__main__":
    main(*sys.argv[1:])

"""Run by test_dense_quantized.py in a process of its own: greedy answers of one checkpoint over TP ranks.

usage: dense_ranks.py CHECKPOINT PROMPTS.json OUT.json TP TOKENS
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path


def main(checkpoint: str, prompts: str, out: str, tp: str, tokens: str) -> None:
    from vllm import LLM

    from sparkloom.vllm.sources import from_engine

    llm = LLM(
        checkpoint,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=1024,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 27,
        tensor_parallel_size=int(tp),
        distributed_executor_backend="mp" if int(tp) > 1 else None,
    )
    asked = json.loads(Path(prompts).read_text())
    found = [dataclasses.asdict(one) for one in from_engine(llm, asked, int(tokens))]
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

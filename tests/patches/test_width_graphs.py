"""With the adaptive verify width, vLLM 0.33's own code plans a full graph for a step of every width."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkloom.cluster.settings import graph_sizes

CODE = """
import json
from types import SimpleNamespace as N
from vllm.config import CUDAGraphMode
from vllm.config.speculative import SpeculativeConfig
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager


def plan(sizes):
    spec = SpeculativeConfig(method="ngram", num_speculative_tokens=7, prompt_lookup_max=3)
    manager = CudaGraphManager.__new__(CudaGraphManager)
    manager.vllm_config = N(speculative_config=spec, num_speculative_tokens=7,
                            cache_config=N(use_kda_recoverssm=False))
    manager.compilation_config = N(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes))
    manager.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    manager.max_num_reqs, manager.decode_query_len, manager.varlen_decode = 4, 8, False
    manager.ubatch_runner, manager.lora_capture_cases = None, [0]
    manager._candidates, manager._capture_descs = {}, {}
    manager._init_candidates()
    full = manager._capture_descs[CUDAGraphMode.FULL]
    return {
        "dynamic": spec.uses_dynamic_speculative_decoding(),
        "graphs": sorted((d.uniform_token_count, d.num_reqs) for d in full),
    }


stock = plan(STOCK)
from sparkloom.vllm.hooks import install
install()
print("FOUND", json.dumps([stock, plan(SIZES)]))
"""


@pytest.mark.heavy
def test_a_full_graph_for_each_width_and_batch(vllm_source: Path, run_in: Callable[..., str]) -> None:
    pytest.importorskip("vllm", reason="no vLLM is installed: its dependencies are missing")

    code = CODE.replace("STOCK", str(list(graph_sizes(7, 4))))
    code = code.replace("SIZES", str(list(graph_sizes(7, 4, adaptive=True))))
    out = run_in(vllm_source, code, json.dumps({"adaptive_verify_width": True}))
    stock, adaptive = json.loads(out.rpartition("FOUND ")[2])
    assert stock == {"dynamic": False, "graphs": [[8, n] for n in (1, 2, 3, 4)]}
    assert adaptive == {"dynamic": True, "graphs": [[w + 1, n] for w in (1, 2, 4, 7) for n in (1, 2, 3, 4)]}

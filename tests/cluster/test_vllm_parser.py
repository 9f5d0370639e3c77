"""vLLM's own command-line parser takes every flag that `render` writes, and means the same by it.

The parser is that of the installed vLLM (the CPU build lags one version behind the product).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from sparkloom.cluster import parse, settings
from sparkloom.cluster.render import render

NODES = [
    {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
    {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
]
DFLASH = {"kind": "dflash2", "accept_non_commercial_licence": True}
DOCUMENTS: list[dict[str, Any]] = [
    *({"profile": p} for p in ("interactive", "long-context", "agents", "no-drafter", "text-only")),
    {"drafter": DFLASH},
    {
        "serving": {"loader": "eager", "cuda_graphs": False, "kda_prefill_backend": "triton"},
        "vision": {"max_videos": 1},
        "engine": {
            "dtype": "bfloat16",
            "attention_backend": "TRITON_MLA",
            "extra_args": ["--stream-interval", "2"],
        },
        "api": {"allowed_origins": ["https://chat.example.org"]},
        "model": {"chat_template": "/etc/template.jinja"},
    },
    {
        "engine": {"platform": "cpu", "dtype": "float32"},
        "model": {"geometry": "checkpoint", "quantization": "none"},
        "drafter": {"kind": "mtp"},
    },
]
# Stays close to vLLM's `serve` command: its parser, then the engine's arguments from what was parsed.
CODE = """
import json, sys
from sparkloom.vllm.serve import answer_for_vllm
answer_for_vllm()
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
out = []
for argv in json.load(sys.stdin):
    parsed = vars(parser.parse_args(argv))
    out.append({k: v if isinstance(v, (int, float, str, bool, list, dict, type(None))) else repr(v)
                for k, v in parsed.items()})
print("PARSED", json.dumps(out, default=repr))
"""


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_takes_every_flag() -> None:
    clusters = [parse({"nodes": NODES, **document}) for document in DOCUMENTS]
    rendered = [render(c, node) for c in clusters for node in ("head", "worker")]
    flags = [list(r.argv[3:]) for r in rendered]  # without `python -m module`
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(flags), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parsed = json.loads(done.stdout.rpartition("PARSED ")[2])
    for i, values in enumerate(parsed):
        cluster, rank = clusters[i // 2], i % 2
        final = settings(cluster)
        assert values["nnodes"] == 2
        assert values["node_rank"] == rank
        assert values["headless"] is bool(rank)
        assert values["max_model_len"] == final.context_tokens
        assert values["max_num_seqs"] == final.max_sequences
        assert values["kv_cache_memory_bytes"] == final.kv_cache_bytes
        assert values["enable_prefix_caching"] is final.prefix_caching
        assert values["enforce_eager"] is (not final.cuda_graphs)
        if rank == 0:
            assert (values["host"], values["port"]) == (cluster.api.host, cluster.api.port)

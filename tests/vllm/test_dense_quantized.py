"""Dense projections as EXL3 and as FP8 inside vLLM: one rank and two say what transformers says.

The tiny GLM-5.3 with KDA, MLA, MLPs, shared experts, the draft layer and the output head quantised, in
float32, against transformers on the decoded weights. KDA's merged input mixes kinds with native parts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sparkloom.parity import EXACT, Generation, compare

pytestmark = pytest.mark.heavy
pytest.importorskip("vllm")
pytest.importorskip("transformers")

PROMPTS, TOKENS = 6, 20
ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "exl3",
}
ON = '{"dense_quantization": true}'


def run(checkpoint: Path, asked: Path, tp: int, patches: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("dense_ranks.py")
    out = checkpoint.with_name(f"{checkpoint.name}.{tp}.json")
    return subprocess.run(
        [
            sys.executable,
            str(script),
            str(checkpoint),
            str(asked),
            str(out),
            str(tp),
            str(TOKENS),
        ],
        env=os.environ | ENV | {"SPARKLOOM_PATCHES": patches},
        capture_output=True,
        text=True,
        timeout=900,
    )


def read(path: Path) -> list[Generation]:
    return [
        Generation(
            tuple(one["tokens"]),
            tuple(one["logprobs"]),
            tuple({int(token): value for token, value in step.items()} for step in one["top"]),
        )
        for one in json.loads(path.read_text())
    ]


@pytest.mark.parametrize("kind", ["exl3", "fp8"])
def test_one_rank_and_two_equal_transformers(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import Glm5NextForConditionalGeneration

    from sparkloom.tiny import write
    from sparkloom.tiny.shape import Shape
    from sparkloom.vllm.checkpoint import read as inventory
    from sparkloom.vllm.dense import write_dense
    from sparkloom.vllm.sources import teacher

    checkpoint = tmp_path / kind
    write(checkpoint, shape=Shape(vocab=512), dense=kind)
    found = inventory(checkpoint)
    names = {**found.modules, **found.fp8} if kind == "exl3" else found.fp8
    for part in (
        "self_attn.q_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.o_proj",
        "shared_experts.up_proj",
    ):
        assert any(name.endswith(part) for name in names), part
    assert "lm_head" in names
    rng = random.Random(3)
    prompts = [[rng.randrange(23, 390) for _ in range(3 + 40 * (i % 3))] for i in range(PROMPTS)]
    asked = tmp_path / "prompts.json"
    asked.write_text(json.dumps(prompts))
    write_dense(checkpoint, tmp_path / "dense")
    model = Glm5NextForConditionalGeneration.from_pretrained(tmp_path / "dense", dtype=torch.float32).eval()
    gate = dataclasses.replace(EXACT, min_prompts=PROMPTS, min_tokens=PROMPTS * TOKENS)
    for tp in (1, 2):
        done = run(checkpoint, asked, tp, ON)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        runs = read(tmp_path / f"{kind}.{tp}.json")
        want = [teacher(model, p, r.tokens) for p, r in zip(prompts, runs, strict=True)]
        verdict = compare(want, runs, gate)
        print(kind, f"TP {tp}", verdict.as_dict())
        assert verdict.ok, verdict.problems
        assert verdict.tokens == PROMPTS * TOKENS


def test_off_refuses_with_the_option_s_name(tmp_path: Path) -> None:
    from sparkloom.tiny import write

    checkpoint = tmp_path / "exl3"
    write(checkpoint, dense="exl3")
    asked = tmp_path / "prompts.json"
    asked.write_text("[[25, 26]]")
    done = run(checkpoint, asked, 1, "{}")
    assert done.returncode != 0
    assert "patches.dense_quantization" in done.stdout + done.stderr

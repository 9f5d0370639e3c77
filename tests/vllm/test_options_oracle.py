"""The tiny GLM-5.3 with the options on against transformers: long prompts, drafts refused and accepted.

Float32, every token must be equal. The prompts are far longer than `index_topk` (64), so that every answer
hangs on the pools that the sparse attention chooses; refused drafts roll the state of the linear layers back.
One engine start. Prefix-cache hits are not in here: vLLM's MLA on a CPU has none.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkloom.parity import EXACT, Generation, compare

pytestmark = pytest.mark.heavy
pytest.importorskip("vllm")
pytest.importorskip("transformers")

ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "exl3",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
OPTIONS = {"adaptive_verify_width": True, "per_request_no_store": True}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(23, 390) for _ in range(n)] for n in (300, 257, 65, 310)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sparkloom.tiny import write

    folder = tmp_path_factory.mktemp("oracle") / "tiny-glm"
    write(folder)
    return folder


@pytest.fixture(scope="module")
def phases(checkpoint: Path, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Three times the same prompts: drafts of nothing, wrong drafts, right drafts."""
    asked, out = checkpoint.parent / "prompts.json", checkpoint.parent / "out.json"
    asked.write_text(json.dumps(prompts))
    script = Path(__file__).with_name("options_inside.py")
    done = subprocess.run(
        [sys.executable, str(script), str(checkpoint), str(asked), str(out)],
        env=os.environ | ENV | {"SPARKLOOM_PATCHES": json.dumps(OPTIONS)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def generations(phase: dict[str, Any]) -> list[Generation]:
    def top(one: dict[str, Any]) -> Any:
        return tuple({int(token): value for token, value in step.items()} for step in one["top"])

    return [Generation(tuple(one["tokens"]), tuple(one["logprobs"]), top(one)) for one in phase["runs"]]


def test_every_token_is_that_of_transformers(
    checkpoint: Path, prompts: list[list[int]], phases: list[dict[str, Any]]
) -> None:
    import torch
    from transformers import Glm5NextForConditionalGeneration

    from sparkloom.vllm.dense import write_dense
    from sparkloom.vllm.sources import teacher

    dense = checkpoint.with_name("dense")
    write_dense(checkpoint, dense)
    model = Glm5NextForConditionalGeneration.from_pretrained(dense, dtype=torch.float32).eval()
    first = generations(phases[0])
    reference = [teacher(model, p, run.tokens) for p, run in zip(prompts, first, strict=True)]
    gate = dataclasses.replace(
        EXACT, min_prompts=len(prompts), min_tokens=len(prompts) * len(first[0].tokens)
    )
    for phase in phases:
        verdict = compare(reference, generations(phase), gate)
        assert verdict.ok, verdict.problems


def test_the_width_falls_and_rises_with_what_is_accepted(phases: list[dict[str, Any]]) -> None:
    _, wrong, right = phases
    assert wrong["counters"]["num_accepted_tokens"] == 0
    assert set(wrong["asked"][-20:]) == {1}
    assert right["asked"][0] == 1
    assert right["asked"][-1] == 7
    assert right["counters"]["num_accepted_tokens"] == right["counters"]["num_draft_tokens"]

    def mean(phase: dict[str, Any]) -> float:
        return float(phase["counters"]["num_draft_tokens"] / phase["counters"]["num_drafts"])

    print("mean width:", mean(wrong), mean(right))
    assert mean(wrong) < 1.5 < 2 < mean(right)

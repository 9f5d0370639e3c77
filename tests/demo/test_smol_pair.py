"""The demo as a person starts it, once: questions, parity, and the end of a broken pair.

The tests run in this order on one start of the pair.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

import client_examples
from smol_reference import decoded, encoded_layers, prompt_ids, tensors, transformers_model

from sparkloom.demo import launch, smol
from sparkloom.demo.client import Client
from sparkloom.demo.smol import Options
from sparkloom.errors import Exit
from sparkloom.parity import NEAR_TIES, Generation, compare
from sparkloom.ranks import Pair, listener, procs
from sparkloom.vllm.sources import from_server, teacher

pytestmark = pytest.mark.heavy
TOKENS = 64


@dataclass
class Demo:
    """A running `sparkloom demo run`."""

    process: subprocess.Popen[str]
    port: int
    runtime: Path
    output: list[str] = field(default_factory=list)
    made: list[Generation] = field(default_factory=list)

    def wait_for(self, words: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not any(words in line for line in list(self.output)):
            assert self.process.poll() is None, "".join(self.output)
            assert time.monotonic() < end, "".join(self.output)
            time.sleep(0.2)

    def keepers(self) -> list[int]:
        (record,) = self.runtime.glob("sparkloom/*/run.json")
        return [pid for pid, _ in json.loads(record.read_text())["keepers"]]


def free_port() -> int:
    with listener(0) as s:
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def model() -> smol.Prepared:
    return smol.prepare(Options(layers=encoded_layers()), lambda *_: None)


@pytest.fixture(scope="module")
def demo(model: smol.Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    runtime = tmp_path_factory.mktemp("run")
    port = free_port()
    command = [sys.executable, "-u", "-m", "sparkloom", "demo", "run", "--port", str(port)]
    command += ["--layers", str(encoded_layers()), "--log-folder", str(runtime / "logs")]
    command += ["--start-timeout", "600"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ, XDG_RUNTIME_DIR=str(runtime), COLUMNS="200"),
    )
    running = Demo(process, port, runtime)
    assert process.stdout
    reader = threading.Thread(target=lambda: running.output.extend(process.stdout), daemon=True)  # type: ignore[arg-type]
    reader.start()
    yield running
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    reader.join(10)


def test_pair_answers_sensibly(demo: Demo) -> None:
    demo.wait_for("Serving until Ctrl-C", 900)
    client = Client(demo.port)
    for question, word in (
        ("What is the capital of France?", "Paris"),
        ("Name three primary colors.", "Blue"),
        ("What is the opposite of hot?", "cold"),
    ):
        assert word in client.chat("smol", question, 24)
    shown = "".join(demo.output)
    for words in ("ranks up", "checked answer", "tokens/s", "MiB", "curl http://127.0.0.1"):
        assert words in shown


SAYS_PARIS = ("openai_chat.py", "anthropic_messages.py", "chat.sh")
NEED_LIBRARIES = ("langchain_chat.py", "llama_index_chat.py", "litellm_chat.py")


def test_clients_get_their_answers(demo: Demo) -> None:
    """The examples of docs/clients.md against real ranks; the model can neither tools nor pictures."""
    names = SAYS_PARIS if client_examples.python() is None else SAYS_PARIS + NEED_LIBRARIES
    if names is SAYS_PARIS:
        print("LangChain, LlamaIndex and LiteLLM were not run: `make clients` installs them")
    root = f"http://127.0.0.1:{demo.port}"
    for name in names:
        shown = client_examples.example(name, root, "none", "smol", TOOLS="0")
        times = 1 if name == "chat.sh" else 2  # whole and streamed
        assert shown.count("The capital of France is Paris.") == times, shown
    shape = client_examples.example("openai_structured.py", root, "none", "smol")
    assert "'capital': " in shape


def test_prefix_doctor_counts_as_the_server_does(demo: Demo, model: smol.Prepared) -> None:
    import httpx

    from sparkloom.prefix.render import Renderer

    body = {
        "model": "smol",
        "messages": [
            {"role": "user", "content": "Name three primary colors."},
            {"role": "assistant", "content": "Red, Blue, and Yellow."},
            {"role": "user", "content": "And in French? naïve café 🙂"},
        ],
    }
    reply = httpx.post(f"http://127.0.0.1:{demo.port}/tokenize", json=body, timeout=60).json()
    assert [piece.id for piece in Renderer(model.folder).render(body)[1]] == reply["tokens"]


def test_benchmark_of_the_pair(demo: Demo, tmp_path: Path) -> None:
    """Every family once, small: rates, zero hits of cold prompts, hits of warm ones, the report."""
    from sparkloom.cli.main import run

    line = ["bench", "all", "--url", f"http://127.0.0.1:{demo.port}", "--out", str(tmp_path), "--runs", "2"]
    line += ["--tokens", "8", "--lengths", "384", "--streams", "1,2", "--workloads", "prose"]
    assert run([*line, "--text", "salted"]) == 0
    got = json.loads((tmp_path / "receipt.json").read_text())
    results = got["results"]
    assert results["decode"]["prose"]["decode_tps"]["median"] > 0
    assert results["prefill"]["salted-384"]["zero_hits"] is True
    assert results["prefix"]["cold"]["prefix_hit_tokens"] == 0
    assert results["prefix"]["warm"]["hit_share"] > 0.6
    assert results["prefix"]["edit-10"]["hit_share"] < results["prefix"]["edit-90"]["hit_share"]
    assert results["concurrency"]["2"]["aggregate_tps"] > 0
    assert [turn["prefix_hit_tokens"] > 0 for turn in results["agent"]["turns"]] == [False, True, True, True]
    assert not got["busy"], got["counters"]
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.fixture(scope="module")
def judge(model: smol.Prepared, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from sparkloom.vllm.dense import write_dense

    folder = tmp_path_factory.mktemp("dense") / "model"
    assert write_dense(model.folder, folder) == len(model.encoded) * 6 * 3
    return transformers_model(folder)


def test_pair_equals_transformers(demo: Demo, model: smol.Prepared, judge: Any) -> None:
    prompts = prompt_ids(model.folder)
    demo.made = from_server(f"http://127.0.0.1:{demo.port}", "smol", prompts, TOKENS, timeout=600)
    want = [teacher(judge, ids, g.tokens) for ids, g in zip(prompts, demo.made, strict=True)]
    verdict = compare(want, demo.made, NEAR_TIES)
    print(verdict.as_dict())
    assert verdict.ok, verdict.problems


@pytest.mark.parametrize("damage", ["swap shards", "drop suh", "wrong codebook"])
def test_gate_sees_damage(demo: Demo, model: smol.Prepared, judge: Any, damage: str) -> None:
    """Negative control: one layer's down projections damaged in one way, and the same gate says no."""
    import torch

    found = tensors(model.folder, "exl3-*.safetensors")
    layer = model.encoded[0]
    stems = [f"model.layers.{layer}.block_sparse_moe.experts.{e}.w2" for e in range(6)]
    if damage == "swap shards":  # the second rank's shard of two experts
        a, b = (found[f"{stem}.trellis"] for stem in stems[:2])
        half = a.shape[0] // 2
        a[half:], b[half:] = b[half:].copy(), a[half:].copy()
    for stem in stems:
        if damage == "drop suh":
            found[f"{stem}.suh"] = np.ones_like(found[f"{stem}.suh"])
        elif damage == "wrong codebook":
            del found[f"{stem}.mcg"]
    down = judge.model.layers[layer].mlp.experts.down_proj
    sound = down.data.clone()
    down.data.copy_(torch.from_numpy(np.stack([decoded(found, stem) for stem in stems])))
    some = list(zip(prompt_ids(model.folder), demo.made, strict=True))[:2]
    broken = [teacher(judge, ids, g.tokens) for ids, g in some]
    down.data.copy_(sound)
    verdict = compare(broken, [g for _, g in some], replace(NEAR_TIES, min_prompts=2, min_tokens=1))
    print(damage, verdict.as_dict())
    assert len([p for p in verdict.problems if p.startswith("prompt")]) == 2, damage


def test_killed_worker_ends_the_pair(demo: Demo) -> None:
    head, worker = demo.keepers()
    table = procs.snapshot()
    everyone = [p for k in (head, worker) for p in [table[k], *procs.descendants(k, table)]]
    assert len(everyone) >= 6
    for p in procs.descendants(worker, table):
        procs.send(p, signal.SIGKILL)
    assert demo.process.wait(60) == Exit.RANK
    shown = "".join(demo.output)
    assert "rank worker ended by SIGKILL" in shown
    assert "mend:" in shown
    assert not any(procs.same(p) for p in everyone)
    assert list((demo.runtime / "sparkloom").iterdir()) == []


def test_pair_equals_one_rank(demo: Demo, model: smol.Prepared, tmp_path: Path) -> None:
    """TP=1 on one node says the same as TP=2 on two (which is down by now)."""
    spec = launch.Spec(model.folder, served="smol")
    with Pair("loopback", base=_folder(tmp_path)) as one:
        port = free_port()
        argv = launch.argv(spec, 0, "", 0, port, nodes=1)
        env = launch.env(0, launch.available_cores(), nodes=1)
        one.start("single", 0, argv, log=tmp_path / "single.log", env=env)
        client = Client(port)
        end = time.monotonic() + 300
        while not client.healthy():
            one.check()
            assert time.monotonic() < end
            time.sleep(0.5)
        alone = from_server(f"http://127.0.0.1:{port}", "smol", prompt_ids(model.folder), TOKENS, timeout=600)
    verdict = compare(alone, demo.made, NEAR_TIES)
    assert verdict.ok, verdict.as_dict()


def _folder(tmp_path: Path) -> Any:
    base = tmp_path / "runs"
    base.mkdir()
    return base

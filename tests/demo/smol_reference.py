"""The judge of the smol model: transformers in float32 on dense weights, teacher-forced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from sparkloom.parity import Generation

PROMPTS = (
    "What is the capital of France?",
    "Name three primary colors.",
    "Write the beginning of a short story about a dragon.",
    "What is the opposite of hot?",
    "Explain in one sentence why the sky is blue.",
    "Who wrote Romeo and Juliet?",
    "List the days of the week.",
    "Describe a quiet morning in a small village.",
    "What do bees make?",
    "Give me a simple recipe for pancakes.",
)
TOP = 5


def tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a checkpoint folder."""
    from safetensors.numpy import load_file

    found: dict[str, NDArray[Any]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def dense(found: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """The same model without EXL3: every encoded matrix decoded by the codec, as torch lays it out."""
    from sparkloom.exl3 import Linear, dense_weight

    out = {name: value for name, value in found.items() if name.endswith(".weight")}
    suffixes = ("trellis", "suh", "svh", "mcg", "mul1")
    for name in [n for n in found if n.endswith(".trellis")]:
        stem = name.removesuffix(".trellis")
        own = {s: found[f"{stem}.{s}"] for s in suffixes if f"{stem}.{s}" in found}
        out[f"{stem}.weight"] = np.ascontiguousarray(dense_weight(Linear.from_tensors(own, stem)).T)
    return out


class Judge:
    """A transformers model whose next-token distributions are asked for."""

    def __init__(self, model: Any) -> None:
        import torch

        self.torch = torch
        self.model = model.eval()

    @classmethod
    def of(cls, folder: Path, weights: dict[str, NDArray[Any]]) -> Judge:
        """A model of the folder's config with these dense weights."""
        import torch
        from transformers import MixtralConfig, MixtralForCausalLM

        config = json.loads((folder / "config.json").read_text())
        config.pop("quantization_config", None)
        settings = MixtralConfig(**config)
        settings._attn_implementation = "eager"
        with torch.device("meta"):
            model = MixtralForCausalLM(settings)
        model = model.to_empty(device="cpu").float()
        state = {n: torch.from_numpy(w) for n, w in fuse(weights, settings).items()}
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        missing = model.load_state_dict(state, strict=True, assign=True)
        assert not missing.missing_keys
        model.model.rotary_emb.__init__(settings)  # its buffers are not in the state dict
        return cls(model)

    def logprobs(self, ids: list[int], tokens: list[int]) -> NDArray[np.float32]:
        """[len(tokens), vocab]: log-probabilities at each position of `tokens` after `ids`."""
        with self.torch.no_grad():
            found = self.model(self.torch.tensor([ids + tokens[:-1]])).logits[0, len(ids) - 1 :]
        out: NDArray[np.float32] = self.torch.log_softmax(found.float(), -1).numpy()
        return out

    def greedy(self, ids: list[int], guess: list[int]) -> Generation:
        """The greedy generation of len(guess) tokens; cheap where `guess` is right.

        Each round takes the longest prefix of `guess` that is the model's own choice, and its next token.
        """
        made: list[int] = []
        rows: list[NDArray[np.float32]] = []
        while len(made) < len(guess):
            trial = made + guess[len(made) :]
            table = self.logprobs(ids, trial)
            choice = table.argmax(-1).tolist()
            right = len(made)
            while right < len(trial) and choice[right] == trial[right]:
                right += 1
            end = min(right + 1, len(trial))
            rows += list(table[len(made) : end])
            made = choice[:end]
        return generation(made, rows)


def generation(tokens: list[int], rows: list[NDArray[np.float32]]) -> Generation:
    top = [{int(i): float(row[i]) for i in np.argpartition(-row, TOP)[:TOP]} for row in rows]
    return Generation(
        tuple(tokens), tuple(float(r[t]) for r, t in zip(rows, tokens, strict=True)), tuple(top)
    )


def fuse(weights: dict[str, NDArray[Any]], config: Any) -> dict[str, NDArray[Any]]:
    """Checkpoint names to transformers 5's own: experts of a layer are stacked in two parameters."""
    out = {n.replace("block_sparse_moe", "mlp"): w for n, w in weights.items() if ".experts." not in n}
    for layer in range(config.num_hidden_layers):
        old = f"model.layers.{layer}.block_sparse_moe.experts"
        new = f"model.layers.{layer}.mlp.experts"
        one = {
            name: [weights[f"{old}.{e}.{name}.weight"] for e in range(config.num_local_experts)]
            for name in ("w1", "w2", "w3")
        }
        pairs = zip(one["w1"], one["w3"], strict=True)
        out[f"{new}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in pairs])
        out[f"{new}.down_proj"] = np.stack(one["w2"])
    return out


def prompt_ids(folder: Path) -> list[list[int]]:
    """The prompts as the chat template renders them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for text in PROMPTS
    ]


def served(port: int, prompts: list[list[int]], tokens: int) -> list[Generation]:
    """Greedy generations of a server, all prompts at once."""
    body = {
        "model": "smol",
        "prompt": prompts,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP,
        "return_tokens_as_token_ids": True,
    }
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=600, trust_env=False
    ).raise_for_status()
    found = []
    for choice in sorted(answer.json()["choices"], key=lambda c: c["index"]):
        logprobs = choice["logprobs"]
        found.append(
            Generation(
                tuple(number(t) for t in logprobs["tokens"]),
                tuple(logprobs["token_logprobs"]),
                tuple({number(t): p for t, p in row.items()} for row in logprobs["top_logprobs"]),
            )
        )
    return found


def number(text: str) -> int:
    """`token_id:42` -> 42."""
    return int(text.removeprefix("token_id:"))


def encoded_layers() -> int:
    """Encoded layers of the served test model; few, so that a cold cache costs little."""
    return int(os.environ.get("SPARKLOOM_TEST_LAYERS", "2"))

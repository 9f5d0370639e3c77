"""The judge of the smol model: transformers in float32 on the weights that the codec decodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def tensors(folder: Path, files: str = "*.safetensors") -> dict[str, NDArray[Any]]:
    """The tensors of a checkpoint folder, or of some of its files."""
    from safetensors.numpy import load_file

    found: dict[str, NDArray[Any]] = {}
    for file in sorted(folder.glob(files)):
        found |= load_file(file)
    return found


def decoded(found: dict[str, NDArray[Any]], stem: str) -> NDArray[np.float32]:
    """One encoded matrix in the original basis, as torch lays it out: [out, in]."""
    from sparkloom.exl3 import Linear, dense_weight

    suffixes = ("trellis", "suh", "svh", "mcg", "mul1")
    own = {s: found[f"{stem}.{s}"] for s in suffixes if f"{stem}.{s}" in found}
    return np.ascontiguousarray(dense_weight(Linear.from_tensors(own, stem)).T)


def transformers_model(folder: Path) -> Any:
    """The checkpoint (without EXL3) in transformers, float32."""
    import torch
    from transformers import MixtralForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


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


def encoded_layers() -> int:
    """Encoded layers of the served test model; few, so that a cold cache costs little."""
    return int(os.environ.get("SPARKLOOM_TEST_LAYERS", "2"))

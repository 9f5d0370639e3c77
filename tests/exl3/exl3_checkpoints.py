"""Small checkpoints on disk for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sparkloom import exl3


def random_linear(
    k: int = 256, n: int = 128, bits: float = 4, codebook: str = "mcg", seed: int = 0, bias: bool = False
) -> exl3.Linear:
    """Any bits are a valid trellis; the scales are those of a small layer."""
    rng = np.random.default_rng(seed)
    return exl3.Linear(
        trellis=rng.integers(-32768, 32768, (k // 16, n // 16, int(16 * bits))).astype(np.int16),
        suh=(rng.choice([-1, 1], k) * rng.uniform(0.01, 0.03, k)).astype(np.float16),
        svh=(rng.choice([-1, 1], n) * rng.uniform(0.5, 1.5, n)).astype(np.float16),
        codebook=codebook,
        bias=rng.standard_normal(n).astype(np.float16) if bias else None,
    )


def tensors_of(**linears: exl3.Linear) -> dict[str, np.ndarray]:
    """Checkpoint tensors of linears; a double underscore in a name stands for a dot."""
    return {
        f"{name.replace('__', '.')}.{suffix}": array
        for name, linear in linears.items()
        for suffix, array in linear.tensors().items()
    }


def write_checkpoint(
    folder: Path, shards: Mapping[str, Mapping[str, np.ndarray]], config: dict | None = None
) -> Path:
    """Shards, their index and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    total = sum(array.nbytes for tensors in shards.values() for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is None:
        config = {"quantization_config": {"quant_method": "exl3"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder

"""A dense copy of an EXL3 checkpoint: every EXL3 and FP8 matrix decoded, the rest as it is.

This is what a parity gate compares with: transformers loads the copy, knows nothing of EXL3, and must say
what the pair says. It is also the way back from EXL3 to a checkpoint that any engine takes (at sixteen or
thirty-two bits).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.errors import SparkloomError
from sparkloom.vllm import checkpoint
from sparkloom.vllm.fp8_headers import BLOCK, Fp8Module


def write_dense(source: Path, target: Path) -> int:
    """Write the dense float32 copy of `source` to the new folder `target`; return how many matrices were
    decoded.

    Decoded matrices are float32 `NAME.weight` [n, k]; all other tensors keep their type.
    `quantization_config` is taken out of config.json. Shards stay as they are cut.

    Raises:
        SparkloomError: `target` exists, or `source` is not a sound checkpoint.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    if target.exists():
        raise SparkloomError("the folder exists", file=target, mend="give a new folder")
    eights = checkpoint.read(source).fp8
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    shards = checkpoint.files(source)
    where = {name: path for path in shards for name in checkpoint.header(path)}
    weight_map: dict[str, str] = {}
    count = 0
    handles: dict[Path, Any] = {path: safe_open(path, "pt") for path in shards}
    for path, handle in handles.items():
        kept: dict[str, Any] = {}
        for name in handle.keys():  # noqa: SIM118  not a mapping
            stem, _, suffix = name.rpartition(".")
            if suffix == "trellis":
                kept[f"{stem}.weight"] = _decoded(stem, where, handles)
                count += 1
            elif suffix == "weight" and stem in eights:
                module = eights[stem]
                scale = handles[where[f"{stem}.{module.scale_name}"]].get_tensor(
                    f"{stem}.{module.scale_name}"
                )
                kept[name] = decode_fp8(handle.get_tensor(name), scale.float(), module)
                count += 1
            elif stem in eights and suffix == eights[stem].scale_name:
                continue
            elif suffix not in checkpoint.SUFFIXES or f"{stem}.trellis" not in where:
                kept[name] = handle.get_tensor(name)
        if kept:
            save_file(kept, part / path.name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(kept, path.name)
    for extra in source.iterdir():
        if extra.is_file() and not extra.name.endswith((".safetensors", ".safetensors.index.json")):
            shutil.copy(extra, part / extra.name)
    fsio.write_json(part / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    fsio.write_json(part / "config.json", config)
    (part / "quantization_config.json").unlink(missing_ok=True)
    part.rename(target)
    return count


def _decoded(stem: str, where: dict[str, Path], handles: dict[Path, Any]) -> Any:
    """The dense weight of one matrix as `nn.Linear` holds it, float32 [n, k]."""
    import torch

    from sparkloom.exl3 import Linear, dense_weight

    def get(suffix: str) -> Any:
        name = f"{stem}.{suffix}"
        return handles[where[name]].get_tensor(name).numpy()

    marks = [mark for mark in checkpoint.MARKERS if f"{stem}.{mark}" in where]
    linear = Linear(get("trellis"), get("suh"), get("svh"), marks[0] if marks else "3inst", None)
    return torch.from_numpy(dense_weight(linear).T.copy())


def decode_fp8(weight: Any, scale: Any, module: Fp8Module) -> Any:
    """float32 [n, k] of an FP8 matrix."""
    if module.scales == "block":
        scale = scale.repeat_interleave(BLOCK, 0)[: module.n].repeat_interleave(BLOCK, 1)[:, : module.k]
    return weight.float() * scale.reshape(-1, scale.shape[-1] if module.scales == "block" else 1)

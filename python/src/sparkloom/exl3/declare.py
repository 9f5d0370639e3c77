"""How a model declares that it is EXL3: `quantization_config` of config.json, and the tensor ledger."""

from __future__ import annotations

import math
from typing import Any

from sparkloom import __version__
from sparkloom.exl3.codebooks import MARKERS
from sparkloom.exl3.headers import DTYPE_BITS
from sparkloom.exl3.options import Options
from sparkloom.exl3.plan import Plan


def quantization_config(plan: Plan, options: Options, before: dict[str, Any]) -> dict[str, Any]:
    """The `quantization_config` of the result's config.json."""
    rates = [(float(t.bits), t.k * t.n) for t in plan.trellises]
    rates += [(float(bits), weights) for bits, weights, _ in plan.existing.values()]
    rates = rates or [(8.0, 1)]  # FP8 alone
    average = sum(bits * weights for bits, weights in rates) / sum(weights for _, weights in rates)
    heads = [t.bits for t in plan.targets if t.key.rpartition(".")[2] == "lm_head"]
    heads += [bits for key, (bits, _, _) in plan.existing.items() if key.rpartition(".")[2] == "lm_head"]
    kept = {key: value for key, value in before.items() if key not in ("tensor_storage", "scope")}
    eights = [t.key for t in plan.targets if t.fp8]
    if eights:
        kept["fp8"] = {"scales": options.fp8_scales, "matrices": len(eights) + _count(before)}
    return {
        **kept,
        "quant_method": "exl3",
        "version": __version__,
        "producer": {"name": "sparkloom"},  # vLLM reads its `name`
        "bits": int(average) if average == int(average) else round(average, 4),
        "head_bits": heads[0] if heads else 16,
        "calibration": {"rows": 0, "cols": 0},
        "out_scales": "always",
        "codebook": options.codebook,
    }


def _count(before: dict[str, Any]) -> int:
    """FP8 matrices that the source says it has."""
    said = before.get("fp8")
    count = said.get("matrices") if isinstance(said, dict) else 0
    return count if isinstance(count, int) else 0


def tensor_storage(plan: Plan, options: Options) -> dict[str, Any]:
    """The ledger of every EXL3 linear: its tensors, rate and codebook."""
    rates = {t.key: (t.bits, options.codebook) for t in plan.trellises}
    rates |= {key: (bits, codebook) for key, (bits, _, codebook) in plan.existing.items()}
    types = {"I16": "int16", "I32": "int32", "F16": "float16", "BF16": "bfloat16", "F32": "float32"}
    stored: dict[str, dict[str, Any]] = {}
    for shard in plan.shards:
        for name, dtype, shape in shard.layout:
            stem = name.rpartition(".")[0]
            if stem in rates:
                stored.setdefault(stem, {})[name] = {
                    "shape": list(shape),
                    "n_bytes": math.prod(shape) * DTYPE_BITS[dtype] // 8,
                    "dtype": f"torch.{types.get(dtype, dtype.lower())}",
                }
    return {
        stem: {
            "stored_tensors": tensors,
            "quant_format": "exl3",
            "bits_per_weight": rates[stem][0],
            **(
                {f"{rates[stem][1]}_multiplier": MARKERS[rates[stem][1]]} if rates[stem][1] in MARKERS else {}
            ),
        }
        for stem, tensors in stored.items()
    }

"""What a checkpoint means for this plug-in, before any rank starts: what is EXL3, and does it split."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.vllm import checkpoint
from sparkloom.vllm.checkpoint import Inventory, Module

BLOCK = 128
# Matrices that tensor parallelism cuts along their inputs; all others along their outputs.
BY_INPUT = ("down_proj", "w2", "o_proj")
# Matrices that every rank holds whole.
WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "wq_b", "f_a_proj", "g_a_proj")


def survey(folder: Path, tp: int) -> dict[str, Any]:
    """Check a checkpoint for serving with this plug-in over `tp` ranks.

    Returns:
        `path`, `tp`, `groups`: per kind of matrix (name with layer and expert as `*`) its rate,
        codebook, number of layers and of matrices; and `needs`: options of the cluster file without which
        a rank refuses the checkpoint.

    Raises:
        SparkloomError: no checkpoint, wrong keys, a broken file or tensor, a matrix that does not split.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SparkloomError(
            f"no readable config.json: {error}", file=path, mend="give the folder of a checkpoint"
        ) from error
    quantization = config.get("quantization_config") or config.get("text_config", {}).get(
        "quantization_config"
    )
    if not isinstance(quantization, dict):
        quantization = {}
    checkpoint.check_config(quantization, str(path))
    inventory = checkpoint.read(folder)
    if not inventory.modules and not inventory.fp8:
        raise SparkloomError(
            "declared as EXL3, but not one tensor is (none is called `.trellis`)",
            file=folder,
            mend="check the path; remove quantization_config if the checkpoint is native",
        )
    for module in inventory.modules.values():
        split(module, tp, str(folder))
    glm = str(config.get("model_type", "")).startswith("glm5_next")
    dense = any(needs_option(name, name in inventory.fp8, glm) for name in inventory.modules | inventory.fp8)
    needs = [f"patches.{OPTION}"] if dense else []
    return {"path": str(folder), "tp": tp, "groups": groups(inventory), "needs": needs}


OPTION = "dense_quantization"


def needs_option(name: str, fp8: bool, glm: bool) -> bool:
    """Whether a matrix loads only with `patches.dense_quantization`."""
    return fp8 or name.rpartition(".")[2] == "lm_head" or (glm and ".self_attn." in name)


def split(module: Module, tp: int, source: str) -> None:
    """Check that a matrix splits over `tp` ranks at the Hadamard transform's block borders.

    Raises:
        SparkloomError: it does not; the mend lists sizes that work.
    """
    if module.name.endswith(WHOLE):
        return
    by_input = module.name.endswith(BY_INPUT)
    whole = module.k if by_input else module.n
    if whole % (BLOCK * tp) == 0:
        return
    sizes = [str(world) for world in (1, 2, 3, 4, 6, 8) if whole % (BLOCK * world) == 0]
    raise SparkloomError(
        f"{module.name}.trellis: {whole} {'inputs' if by_input else 'outputs'} cannot be split over {tp} "
        f"ranks in multiples of {BLOCK}",
        file=source,
        field=f"{module.name}.trellis",
        value=whole,
        mend="use a tensor-parallel size of " + " or ".join(sizes),
    )


def groups(inventory: Inventory) -> list[dict[str, Any]]:
    """The inventory by kind of matrix."""
    found: dict[tuple[str, float, str], dict[str, Any]] = {}
    for module in inventory.modules.values():
        name = re.sub(r"\.layers\.\d+\.", ".layers.*.", module.name)
        entry = found.setdefault(
            (name, module.bits, module.codebook),
            {"name": name, "bits": module.bits, "codebook": module.codebook, "layers": 0, "matrices": 0},
        )
        entry["layers"] += 1
        entry["matrices"] += max(module.experts, 1)
    for one in inventory.fp8.values():
        name = re.sub(r"\.layers\.\d+\.", ".layers.*.", one.name)
        fp8 = {"name": name, "bits": 8, "codebook": f"fp8 {one.scales}", "layers": 0, "matrices": 0}
        entry = found.setdefault((name, 8, f"fp8 {one.scales}"), fp8)
        entry["layers"] += 1
        entry["matrices"] += 1
    return list(found.values())

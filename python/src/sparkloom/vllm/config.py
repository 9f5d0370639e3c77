"""`Exl3Config`: how vLLM learns that a checkpoint is EXL3, and which method each layer gets.

Which layers are EXL3 is decided before the model is built, from the headers of the checkpoint's own files
(`sparkloom.vllm.checkpoint`); only where none can be read does `quantization_config` decide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from sparkloom.errors import SparkloomError
from sparkloom.vllm import checkpoint
from sparkloom.vllm.checkpoint import Inventory, Module

logger = init_logger("vllm.sparkloom.exl3")  # under "vllm." so that vLLM's handlers print it

# Fused layers whose members a model may not list in `packed_modules_mapping`.
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
# Names that a checkpoint may use for gate, down and up of an expert.
GATE, DOWN, UP = ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")


class Exl3Config(QuantizationConfig):  # type: ignore[misc]
    """The checkpoint's EXL3 modules, and vLLM's questions about them."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self.inventory = inventory

    def get_name(self) -> str:
        """The name in `quantization_config.quant_method`."""
        return "exl3"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """All that a back end may compute in; the layer's own back end refuses what it cannot."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """No bound here: the reference back end runs anywhere, others say so themselves."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Where else a configuration may stand when config.json has none."""
        return ["quantization_config.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Exl3Config:
        """Check the keys; the files are read later, by `maybe_update_config`, which knows the path.

        The `tensor_storage` ledger (tens of megabytes) is not kept: this object travels to every worker.
        """
        return cls(checkpoint.declared(config, "config.json (quantization_config)"))

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Claim checkpoints of method exl3; with `--quantization exl3`, refuse any other with the reason."""
        if user_quant == "exl3" or hf_quant_cfg.get("quant_method") == "exl3":
            checkpoint.check_config(hf_quant_cfg, "config.json (quantization_config)")
            return "exl3"
        return None

    def maybe_update_config(
        self, model_name: str, hf_config: Any | None = None, revision: str | None = None
    ) -> None:
        """Read the checkpoint's headers, if its files are on this machine."""
        folder = local_folder(model_name, revision)
        if folder is None or not weights_here(folder, certain=Path(model_name).is_dir()):
            logger.warning(
                "no weight file of %s is here yet: by its quantization_config routed experts are EXL3 and "
                "everything else is native",
                model_name,
            )
            return
        self.inventory = checkpoint.read(folder)
        if not self.inventory.modules:
            raise SparkloomError(
                "declared as EXL3, but not one tensor is (none is called `.trellis`)",
                file=folder,
                mend="check the path; remove quantization_config if the checkpoint is native",
            )
        refuse_attention(self.inventory, hf_config)
        logger.info("%s: %d groups of EXL3 matrices", model_name, len(self.inventory.modules))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """The method of one layer: EXL3 where its tensors are, else vLLM's unquantized one."""
        # Imported late: the API server also loads this module, and builds no layer.
        from vllm.model_executor.layers.fused_moe import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        if isinstance(layer, RoutedExperts):
            names = [
                (layer.ckpt_gate_proj_name, *GATE),
                (layer.ckpt_up_proj_name or UP[0], *UP),
                (layer.ckpt_down_proj_name, *DOWN),
            ]
            found = self.inventory.experts(prefix, names)
            if found is None:
                return None
            from sparkloom.vllm.experts import Exl3ExpertsMethod

            gate, up, down = found
            return Exl3ExpertsMethod(layer.moe_config, gate, up, down, self.inventory.source)
        if isinstance(layer, LinearBase):
            matrices = self.matrices(prefix)
            if matrices is None:
                return UnquantizedLinearMethod()
            from sparkloom.vllm.linear import Exl3LinearMethod

            return Exl3LinearMethod(matrices, self.inventory.source)
        if isinstance(layer, VocabParallelEmbedding) and self.inventory.find(prefix) is not None:
            raise SparkloomError(
                f"{prefix} is EXL3; embeddings and the output head must be native here",
                file=self.inventory.source,
                field=prefix,
                mend="encode the checkpoint without it",
            )
        return None

    def matrices(self, prefix: str) -> list[Module] | None:
        """The EXL3 matrices behind a (possibly fused) linear layer, or None if it is native."""
        stem, _, last = prefix.rpartition(".")
        members = self.packed_modules_mapping.get(last) or FUSED.get(last) or [last]
        names = [f"{stem}.{member}" if stem else member for member in members]
        found = [self.inventory.find(name) for name in names]
        if not any(found):
            one = self.inventory.find(prefix)
            return None if one is None else [one]
        missing = [name for name, module in zip(names, found, strict=True) if module is None]
        if missing:
            raise SparkloomError(
                f"{prefix} is one layer in vLLM, but only a part of it is EXL3; native: {', '.join(missing)}",
                file=self.inventory.source,
                field=missing[0],
                mend="encode all of " + ", ".join(members) + " or none",
            )
        return [module for module in found if module is not None]


def local_folder(model: str, revision: str | None = None) -> Path | None:
    """The folder of a checkpoint on this machine: the path itself, or the hub's cache; None if not here."""
    path = Path(model)
    if path.is_dir():
        return path
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # not cached, or no valid hub name: the weight loader will say so
        return None


def weights_here(folder: Path, *, certain: bool) -> bool:
    """Whether the weight files are in `folder`.

    Args:
        certain: the user named this folder, so a missing shard is an error; in the hub's cache it may still
            come.

    Raises:
        SparkloomError: a shard is missing from the user's own folder.
    """
    try:
        return bool(checkpoint.files(folder))
    except SparkloomError:
        if certain:
            raise
        return False


def refuse_attention(inventory: Inventory, hf_config: Any) -> None:
    """GLM-5.3's attention layers take no quantization in vLLM: say so instead of failing on a missing
    parameter.

    Raises:
        SparkloomError: the checkpoint holds EXL3 attention matrices of such a model.
    """
    if not str(getattr(hf_config, "model_type", "")).startswith("glm5_next"):
        return
    for name in inventory.modules:
        if ".self_attn." in name:
            raise SparkloomError(
                f"{name} is EXL3, but vLLM builds GLM-5.3's attention without quantization",
                file=inventory.source,
                field=name,
                mend="encode experts and MLPs only, keep attention native",
            )

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
from sparkloom.vllm.fp8_headers import Fp8Module
from sparkloom.vllm.survey import OPTION, needs_option

logger = init_logger("vllm.sparkloom.exl3")  # under "vllm." so that vLLM's handlers print it

# Fused layers whose members a model may not list in `packed_modules_mapping`.
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
# Merged only for fewer launches: members differ in kind and size, and may be EXL3, FP8 or native each.
MIXED = {
    "in_proj_qkvbfg_a": ["q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"],
    "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
}
# Layers whose native weight vLLM reads: decoded once while they are loaded.
DECODED = ("kv_b_proj",)
# Parts of GLM-5.3 that vLLM builds native whatever the options say.
NATIVE_ONLY = (".indexer.wk", ".indexer.weights_proj", ".eh_proj", ".mlp.gate", "embed_tokens", "conv1d")
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
        if not self.inventory.modules and not self.inventory.fp8:
            raise SparkloomError(
                "declared as EXL3, but not one tensor is (none is called `.trellis`)",
                file=folder,
                mend="check the path; remove quantization_config if the checkpoint is native",
            )
        refuse(self.inventory, hf_config, dense=dense_quantization())
        logger.info(
            "%s: %d groups of EXL3 matrices, %d FP8 matrices",
            model_name,
            len(self.inventory.modules),
            len(self.inventory.fp8),
        )

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """The method of one layer: EXL3 where its tensors are, else vLLM's unquantized one."""
        # Imported late: the API server also loads this module, and builds no layer.
        from vllm.model_executor.layers.fused_moe import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            ParallelLMHead,
            VocabParallelEmbedding,
        )

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
            parts = self.parts(prefix)
            if parts is None:
                return UnquantizedLinearMethod()
            from sparkloom.vllm.linear import DecodedLinearMethod, Exl3LinearMethod

            made = DecodedLinearMethod if prefix.rpartition(".")[2] in DECODED else Exl3LinearMethod
            return made(parts, self.inventory.source)
        if isinstance(layer, VocabParallelEmbedding):
            whole = self.inventory.find_any(prefix)
            if whole is None:
                return None
            if isinstance(layer, ParallelLMHead):
                from sparkloom.vllm.linear import Exl3LinearMethod

                return Exl3LinearMethod([whole], self.inventory.source)
            raise SparkloomError(
                f"{prefix} is quantised; embeddings must be native here",
                file=self.inventory.source,
                field=prefix,
                mend="encode the checkpoint without it",
            )
        return None

    def parts(self, prefix: str) -> list[Module | Fp8Module | str] | None:
        """The matrices behind a (possibly fused) linear layer, native ones by name; None if all are."""
        stem, _, last = prefix.rpartition(".")
        members = self.packed_modules_mapping.get(last) or FUSED.get(last) or MIXED.get(last) or [last]
        names = [f"{stem}.{member}" if stem else member for member in members]
        found = [self.inventory.find_any(name) for name in names]
        if not any(found):
            one = self.inventory.find_any(prefix)
            return None if one is None else [one]
        missing = [name for name, module in zip(names, found, strict=True) if module is None]
        if missing and last not in MIXED:
            raise SparkloomError(
                f"{prefix} is one layer in vLLM, but only a part of it is quantised; "
                f"native: {', '.join(missing)}",
                file=self.inventory.source,
                field=missing[0],
                mend="encode all of " + ", ".join(members) + " or none",
            )
        return [module or name for module, name in zip(found, names, strict=True)]


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


def dense_quantization() -> bool:
    """Whether the cluster file lets quantised dense layers load (`patches.dense_quantization`)."""
    from sparkloom.vllm.hooks import options

    return options.read().get(OPTION) is True


def refuse(inventory: Inventory, hf_config: Any, *, dense: bool) -> None:
    """Say which matrix cannot be loaded, instead of failing on a missing parameter.

    Raises:
        SparkloomError: a matrix needs `patches.dense_quantization`, or vLLM builds its layer native anyway.
    """
    glm = str(getattr(hf_config, "model_type", "")).startswith("glm5_next")
    for name, module in (inventory.modules | inventory.fp8).items():
        kind = "FP8" if isinstance(module, Fp8Module) else "EXL3"
        if glm and (name.endswith(NATIVE_ONLY) or ".visual." in name):
            raise SparkloomError(
                f"{name} is {kind}, but vLLM builds this layer without quantization",
                file=inventory.source,
                field=name,
                mend="encode the checkpoint without it",
            )
        if not dense and needs_option(name, kind == "FP8", glm):
            why = (
                "vLLM builds GLM-5.3's attention without quantization"
                if ".self_attn." in name
                else "it is dense"
            )
            raise SparkloomError(
                f"{name} is {kind}, and {why} unless patches.{OPTION} is on",
                file=inventory.source,
                field=name,
                mend=f'set "patches": {{"{OPTION}": true}} in the cluster file, or keep this matrix native',
            )

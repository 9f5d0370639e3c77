"""Run by test_true_mapping.py: vLLM's GLM-5.3 at its true size on the meta device, loaded with hollow
tensors.

usage: true_mapping.py CHECKPOINT TP RANKS OUT.json

Every copy into a parameter is recorded: where it lands and which part of which checkpoint tensor it takes.
Storages that come into being while weights are loaded are counted while they live.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparkloom.exl3.headers import read_header

TYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I16": torch.int16,
    "I32": torch.int32,
    "F8_E4M3": torch.float8_e4m3fn,
}


class Watch(TorchDispatchMode):
    """Records copies into known storages, and the bytes of new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[int, str] = {}
        self.source: tuple[str, int] = ("", 0)
        self.landed: list[tuple[str, int, int, str, int, int]] = []
        self.known: set[int] = set()
        self.live = self.peak = 0

    def gone(self, key: int, nbytes: int) -> None:
        self.live -= nbytes
        self.known.discard(key)

    def meet(self, tensor: torch.Tensor) -> None:
        """Count a storage that is new."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self.known or key in self.owners or key == self.source[1]:
            return
        self.known.add(key)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.gone, key, nbytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.fill_.Scalar):
            target = args[0]
            name = self.owners.get(target.untyped_storage()._cdata)
            if name is not None:
                value = args[1] if isinstance(args[1], torch.Tensor) else None
                mine = value is not None and value.untyped_storage()._cdata == self.source[1]
                part = (value.storage_offset(), value.numel()) if mine else (-1, -1)
                assert target.is_contiguous(), name
                self.landed.append((name, target.storage_offset(), target.numel(), self.source[0], *part))
        elif isinstance(out, torch.Tensor):
            self.meet(out)
        return out


def checkpoint(folder: Path, watch: Watch) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the index, hollow; markers are real, for loaders read them."""
    for path in sorted(folder.glob("*.safetensors")):
        for name, entry in read_header(path).tensors.items():
            if name.endswith(".mcg"):
                value = torch.tensor(-877912083, dtype=torch.int32)
            else:
                value = torch.empty(entry.shape, dtype=TYPES[entry.dtype], device="meta")
            watch.source = (name, value.untyped_storage()._cdata)
            yield name, value


def configure(folder: Path) -> Any:
    """vLLM's configuration, and a group of one process that will pose as each rank in turn."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=4096,
        max_num_batched_tokens=4096,
        kv_cache_memory_bytes=1 << 28,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    ).create_engine_config()
    with set_current_vllm_config(config):
        where = f"file://{folder}/rendezvous"
        parallel_state.init_distributed_environment(1, 0, where, 0, backend="gloo")
        parallel_state.initialize_model_parallel(1, 1, backend="gloo")
    return config


def build(config: Any, tp: int, rank: int) -> dict[str, Any]:
    """The trunk's and the draft's classes of one rank, on the meta device."""
    from copy import copy

    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import get_tp_group

    from sparkloom.vllm.cpu.model import Glm5NextMTP, Glm5NextText

    group = get_tp_group()
    group.world_size, group.rank_in_group = tp, rank  # nothing communicates while weights are loaded
    config.compilation_config.static_forward_context.clear()
    draft = copy(config)
    draft.model_config = config.speculative_config.draft_model_config
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with set_current_vllm_config(config), torch.device("meta"):
            return {"trunk": Glm5NextText(vllm_config=config), "draft": Glm5NextMTP(vllm_config=draft)}
    finally:
        torch.set_default_dtype(before)


def main(folder: str, tp: str, ranks: str, out: str) -> None:
    config = configure(Path(folder))
    found: list[dict[str, Any]] = []
    for rank in map(int, ranks.split(",")):
        loads = {}
        for kind, model in build(config, int(tp), rank).items():
            watch, sizes = Watch(), {}
            for name, parameter in model.named_parameters():
                watch.owners[parameter.untyped_storage()._cdata] = name
                sizes[name] = (parameter.numel(), parameter.numel() * parameter.element_size())
            with watch:
                model.load_weights(checkpoint(Path(folder), watch))
            loads[kind] = {"sizes": sizes, "landed": watch.landed, "peak": watch.peak}
        found.append(loads)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

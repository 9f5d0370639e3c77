"""Quantised dense projections of GLM-5.3: KDA, MLA and (through the plug-in itself) MLPs and the output head.

Why: at decode the dense projections are read whole for every step; in 16 bits they are the larger part of a
verify step. vLLM builds them without a quantisation config, so a checkpoint cannot hold them smaller.
How: where the checkpoint is EXL3 (dense matrices EXL3 or weight-only FP8), KDA and MLA layers get its config.
Matrices that the checkpoint holds native stay what they were, so does every other quantisation method.
Upstream: `Glm5NextLinearAttention.__init__` in `vllm/models/glm5next/common/kda.py` sets
`vllm_config.quant_config = None` while it is built; `Glm5NextDecoderLayer.__init__` in `model.py` passes
`quant_config=None` to `Glm5NextMLAAttention` (0.32 and 0.33 alike).
Issue text: "GLM-5.3: KDA and MLA projections ignore the quantization config, so that a checkpoint cannot
hold them quantised. Please pass it on and let the method decide by the layer's prefix, as for the MLPs."
Default off: without it such a checkpoint is refused. Drop when: vLLM passes the config on.
Tested: on a CPU, one rank and two against transformers, EXL3 and FP8 (tests/vllm/test_dense_quantized.py).
FP8 on a GPU goes through vLLM's Marlin kernel, which was not run.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from sparkloom.vllm.hooks.shape import HookRefused

OPTION = "dense_quantization"
ARCHITECTURES = {
    "Glm5NextForCausalLM": "Glm5NextForCausalLM",
    "Glm5NextForConditionalGeneration": "Glm5NextForConditionalGeneration",
    "Glm5NextMTPModel": "Glm5NextMTP",
}
"""Names in vLLM's registry, and the classes of `vllm.models.glm5next` behind them."""


def ours(config: Any) -> Any:
    """The quantisation config if it is this plug-in's, else None."""
    from sparkloom.vllm.config import Exl3Config

    return config if isinstance(config, Exl3Config) else None


def expect_source(function: Any, text: str, times: int = 1) -> None:
    """Refuse unless a function's source holds `text` at least so many times.

    Raises:
        HookRefused: it does not.
    """
    if inspect.getsource(function).count(text) < times:
        raise HookRefused(
            f"{OPTION}: {function.__qualname__} no longer says `{text}` (expected {times} times); "
            f"set this patch off in the cluster file or use the pinned vLLM"
        )


def apply() -> None:
    """Pass the checkpoint's config on in the model's classes, which this imports. Calling again does nothing.

    Raises:
        HookRefused: upstream no longer has the form that this changes.
    """
    from vllm.models.glm5next.common import attention, kda, model, mtp

    linear: Any = kda.Glm5NextLinearAttention
    latent: Any = attention.Glm5NextMLAAttention
    if hasattr(linear, "sparkloom_quant"):
        return
    expect_source(linear.__init__, "vllm_config.quant_config = None")
    expect_source(linear.__init__, "quant_config=self.quant_config", 4)
    expect_source(model.Glm5NextDecoderLayer.__init__, "quant_config=None,")
    build_linear, build_latent = linear.__init__, latent.__init__

    @functools.wraps(build_linear)
    def init_linear(self: Any, config: Any, vllm_config: Any, prefix: str = "") -> None:
        self.__dict__["sparkloom_quant"] = ours(vllm_config.quant_config)
        build_linear(self, config, vllm_config, prefix)

    @functools.wraps(build_latent)
    def init_latent(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("quant_config") is None:
            vllm_config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
            kwargs["quant_config"] = ours(vllm_config.quant_config)
        build_latent(self, *args, **kwargs)

    def get(self: Any) -> Any:
        return self.__dict__.get("sparkloom_quant") or self.__dict__.get("stock_quant")

    def put(self: Any, value: Any) -> None:
        self.__dict__["stock_quant"] = value

    # The base class stores the (hidden) config under this name; the projections are built from it.
    linear.quant_config = property(get, put)
    linear.sparkloom_quant = None
    linear.__init__, latent.__init__ = init_linear, init_latent
    keep_fp8(model, mtp)


def keep_fp8(*modules: Any) -> None:
    """Leave FP8 attention matrices to the layers that hold them as FP8.

    Upstream's loaders turn them into 16 bits unless the layer has scales per block; a layer of this plug-in
    may have scales per channel.
    """
    for module in modules:
        load, known = module._try_load_fp8_attn_proj, modules[0]._FP8_ATTN_PROJS

        def keep(
            name: str,
            tensor: Any,
            buffer: Any,
            parameters: Any,
            *rest: Any,
            load: Any = load,
            known: Any = known,
        ) -> bool:
            for suffix, (_, target, *_others) in known.items():
                if suffix in name and f"{name.rsplit(suffix, 1)[0]}.{target}.weight_scale" in parameters:
                    return False
            return bool(load(name, tensor, buffer, parameters, *rest))

        module._try_load_fp8_attn_proj = keep


def install(value: object) -> None:
    """Have vLLM take the model's classes through `sparkloom.vllm.glm_dense`, which applies this on import.

    On a CPU the classes come through `sparkloom.vllm.cpu.model`, which does the same.
    """
    if value is not True:
        return
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return
    from vllm import ModelRegistry

    for name, target in ARCHITECTURES.items():
        ModelRegistry.register_model(name, f"sparkloom.vllm.glm_dense:{target}")

"""Blocker 14, silent: native experts on a CPU ignore `swiglu_limit`.

Upstream: `CPUUnquantizedExperts` has no place for the limit (10.0 in GLM-5.3) and computes without it:
right for small activations, wrong as soon as a gate or up value passes the limit, with no error. EXL3
experts clamp (every back end must). Native experts of such a model are refused on a CPU.
"""

from __future__ import annotations

from typing import Any

from sparkloom.errors import SparkloomError


def refuse(layer: Any) -> None:
    """Raise for a layer that upstream would compute wrongly.

    Raises:
        SparkloomError: the layer has a limit.
    """
    if getattr(layer, "swiglu_limit", None) is not None:
        raise SparkloomError(
            f"{layer.layer_name}: native experts with a SwiGLU limit are computed wrongly by vLLM on a CPU",
            field="swiglu_limit",
            value=layer.swiglu_limit,
            mend="encode the experts as EXL3 (`sparkloom exl3 quantize`), or serve this model on a GPU",
        )


def apply() -> None:
    """Check every native MoE layer once its weights are loaded."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    finish = UnquantizedFusedMoEMethod.process_weights_after_loading

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        refuse(layer)
        finish(self, layer)

    UnquantizedFusedMoEMethod.process_weights_after_loading = process_weights_after_loading

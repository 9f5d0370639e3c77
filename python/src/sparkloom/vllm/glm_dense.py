"""vLLM's GLM-5.3 classes with quantised dense projections (`hooks/dense.py`); imported with the model."""

from __future__ import annotations

from vllm.models.glm5next import Glm5NextForCausalLM, Glm5NextForConditionalGeneration, Glm5NextMTP

from sparkloom.vllm.hooks import dense

dense.apply()

__all__ = ["Glm5NextForCausalLM", "Glm5NextForConditionalGeneration", "Glm5NextMTP"]

"""What vLLM imports on a CPU in place of its `glm5next`: the workarounds first, then the same classes."""
# ruff: noqa: E402  (the order is the point)

from __future__ import annotations

from collections.abc import Iterable

import torch

from sparkloom.vllm.cpu import no_torchvision

no_torchvision.apply()

from vllm.model_executor.models.utils import WeightsMapper
from vllm.models.glm5next.common.model import Glm5NextForCausalLM
from vllm.models.glm5next.common.mtp import Glm5NextMTP

from sparkloom.vllm.cpu import (
    conv,
    draft_norm,
    indexer,
    latent_attention,
    mhc,
    qkv_norm,
    recurrence,
    swiglu,
)
from sparkloom.vllm.hooks import dense, options

for part in (indexer, latent_attention, recurrence, qkv_norm, mhc, conv, draft_norm, swiglu):
    part.apply()
if options.read().get(dense.OPTION) is True:
    dense.apply()


class Glm5NextText(Glm5NextForCausalLM):  # type: ignore[misc]
    """The text part of the full (image and text) checkpoint; its vision tensors are left out."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={"model.language_model.": "model.", "model.visual.": None}
    )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the full checkpoint's names."""
        return set(super().load_weights(self.hf_to_vllm_mapper.apply(weights)))


__all__ = ["Glm5NextForCausalLM", "Glm5NextMTP", "Glm5NextText"]

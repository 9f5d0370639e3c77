"""Programmatic dependent launch off on compute capability 12.x.

Why: vLLM turns PDL on for every capability from 9.0 up and offers no switch. On GB10 a race between
dependent launches was reported on the state kernels of linear attention.
Upstream: `CudaPlatform.is_arch_support_pdl` in `vllm/platforms/cuda.py` (0.33.0) returns `major >= 9`;
issue text: "PDL is on for every capability from 9.0 up and has no switch. On sm_12x a dependent launch can
read state that its predecessor has not written. Please gate it by capability, or by an environment
variable."
Default on until a GB10 test shows it safe.
Tested: the rule, and the hook's install inside vLLM on a CPU, where it must do nothing (tests/vllm/hooks).
On a 12.x GPU `current_platform.is_arch_support_pdl()` must be False with it; on a 9.x GPU it changes
nothing.
Drop when: vLLM gates PDL by capability or by an environment variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkloom.vllm.hooks.shape import expect_attribute


def gated(original: Callable[[], bool], major: Callable[[], int]) -> Callable[[], bool]:
    """The gate: False on 12.x, else what vLLM says. Both arguments are called late, never at install."""

    def is_arch_support_pdl() -> bool:
        return original() and major() != 12

    return is_arch_support_pdl


def install(_: object) -> None:
    """Replace the platform's answer; touches no device."""
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    if not current_platform.is_cuda():
        return

    def major() -> int:
        import torch

        return int(torch.cuda.get_device_capability()[0])

    original = expect_attribute("pdl_gate", platform, "is_arch_support_pdl")
    platform.is_arch_support_pdl = staticmethod(gated(original, major))

"""Sparkloom's vLLM plug-in: EXL3 weights, a shorter reader wait on few cores, GLM-5.3 on a CPU.

vLLM finds `register` through the entry point `vllm.general_plugins: exl3` and calls it in every process: API
server, engine core, workers, model inspection.
"""

from __future__ import annotations

_registered = False


def register() -> None:
    """Register everything with vLLM. Cheap, safe to call again, touches no device.

    vLLM only logs a plug-in whose *import* fails and goes on without it (`sparkloom plugin check` tells); an
    exception raised in here ends the process.
    """
    global _registered
    if _registered:
        return
    from vllm.model_executor.layers.quantization import register_quantization_config

    from sparkloom.vllm import ablit, cpu, hooks, spin
    from sparkloom.vllm.config import Exl3Config

    register_quantization_config("exl3")(Exl3Config)
    cpu.install()
    spin.install()
    hooks.install()
    ablit.install()
    _registered = True

"""vLLM's own GLM-5.3-Flash classes on a CPU, so that a machine without a GPU can check a pair end to end.

vLLM 0.32 and 0.33 build `Glm5NextForCausalLM` for GPUs. On a CPU fourteen things stand in the way, three of them
silently wrong. Each has a module here with the upstream reason; `model.py` applies them all when vLLM imports the
model, and only then: other models in other processes are untouched.

| # | upstream | what happens | module |
|---|---|---|---|
| 1 | the model's vision part imports transformers' image processor, which imports torchvision | import error without torchvision, whose builds do not fit a CPU torch | `no_torchvision` |
| 2 | `CpuPlatform.get_attn_backend_cls` | "Sparse Attention is not supported on CPU." | `indexer` |
| 3 | `CPUMLABackend` knows block size 16 and head size 576 only, an AMX machine takes another back end | start-up error | `latent_attention` |
| 4 | `gather_initial_states` asserts CUDA | start-up error | `recurrence` |
| 5 | `chunk_kda_with_fused_gate` is Triton | no Triton | `recurrence` |
| 6 | `scatter_states` is Triton | no Triton | `recurrence` |
| 7 | `fused_recurrent_kda` is Triton | no Triton | `recurrence` |
| 8 | the attention asks for the fused q/kv norm, which is Triton | no Triton | `qkv_norm` |
| 9 | `CPUMLAImpl.do_kv_cache_update` reshapes a rope part of width 0 | run-time error | `latent_attention` |
| 10 | **silent**: mHC's CPU form drops `norm_weight` | both layer norms never run | `mhc` |
| 11 | prefix caching is on by default, the hybrid cache then rejects the block size | start with `--no-enable-prefix-caching` | none: an option |
| 12 | **silent**: the CPU conv swallows `num_accepted_tokens` | wrong window, NaN with any drafts | `conv` |
| 13 | MTP's `fused_eh_norm` is Triton | no Triton | `draft_norm` |
| 14 | **silent**: `CPUUnquantizedExperts` ignores `swiglu_limit` | wrong once a gate passes the limit | `swiglu` (EXL3 experts clamp anyway) |

Every module has a test that fails when the upstream code no longer has the form that it works around.
"""

# ruff: noqa: E501  (the table)
from __future__ import annotations

ARCHITECTURES = {
    "Glm5NextForCausalLM": "sparkloom.vllm.cpu.model:Glm5NextForCausalLM",
    "Glm5NextForConditionalGeneration": "sparkloom.vllm.cpu.model:Glm5NextText",
    "Glm5NextMTPModel": "sparkloom.vllm.cpu.model:Glm5NextMTP",
}


def install() -> None:
    """On a CPU, let vLLM take the model classes from here. Cheap: the names are resolved when a model is built."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm import ModelRegistry

    for name, path in ARCHITECTURES.items():
        ModelRegistry.register_model(name, path)

"""Each workaround of `sparkloom.vllm.cpu` against the upstream code that it works around.

A failure here means that vLLM has changed: read the named place again. If the fault is gone, remove the
workaround.
"""

from __future__ import annotations

import pytest
import vllm_upstream as upstream

ATTENTION = "models/glm5next/common/attention.py"
KDA = "models/glm5next/common/kda.py"
MLA = "v1/attention/backends/mla/cpu_mla.py"


def test_1_the_model_imports_the_image_processor() -> None:
    assert "from transformers import BatchFeature, Glm4vProcessor" in upstream.text(
        "model_executor/models/glm4_1v.py"
    )
    assert "Glm4vForConditionalGeneration" in upstream.text("models/glm5next/common/model.py")


def test_2_no_sparse_attention_on_cpu() -> None:
    body = upstream.definition("platforms/cpu.py", "CpuPlatform.get_attn_backend_cls")
    assert "Sparse Attention is not supported on CPU." in body
    built = upstream.definition(ATTENTION, "Glm5NextMLAAttention.__init__")
    assert "self.is_v32 = config.index_topk is not None" in built  # the branch that DenseBranch takes
    # The stand-in carries the names under which the checkpoint's tensors arrive.
    indexer = upstream.definition(ATTENTION, "Indexer.__init__")
    for name in (
        "wq_b",
        "wk_weights_proj",
        "k_norm",
        "index_kpool_compress_ape",
        "index_kpool_compress_gate",
    ):
        assert f"self.{name} = " in indexer


def test_3_latent_attention_has_one_shape() -> None:
    assert "return [576]" in upstream.definition(MLA, "CPUMLABackend.get_supported_head_sizes")
    assert "return [16]" in upstream.definition(MLA, "CPUMLABackend.get_supported_kernel_block_sizes")
    assert "== 16" in upstream.definition(MLA, "CPUMLABackend.supports_block_size")
    assert "mla_decode_kvcache_cpu" in upstream.definition(MLA, "CPUMLAImpl.forward_mqa")
    assert "AMX_MLA" in upstream.definition("platforms/cpu.py", "CpuPlatform.get_attn_backend_cls")


def test_4_to_7_recurrence_is_triton() -> None:
    folder = "model_executor/layers/mamba/ops"
    assert "is_cuda" in upstream.text(f"{folder}/gather_initial_states.py")
    assert "@triton.jit" in upstream.text(f"{folder}/scatter_states.py")
    text = upstream.text(KDA)
    for name in (
        "gather_initial_states(",
        "scatter_states.register_warmup(",
        "scatter_states(",
        "chunk_kda_with_fused_gate(",
        "fused_recurrent_kda(",
    ):
        assert name in text
    kernels = upstream.folder() / "models/glm5next/nvidia/ops/third_party/kda"
    sources = (
        [kernels.with_suffix(".py")] if kernels.with_suffix(".py").is_file() else list(kernels.rglob("*.py"))
    )
    assert any("triton" in source.read_text() for source in sources)


def test_8_the_attention_asks_for_the_fused_norm() -> None:
    assert "fuse_qkv_rmsnorm=True" in upstream.definition(ATTENTION, "Glm5NextMLAAttention.__init__")
    assert "if not self.fuse_qkv_rmsnorm" in upstream.text("model_executor/layers/mla.py")


def test_9_cache_write_reshapes_the_rope_part() -> None:
    assert ".view(-1, pe_dim)" in upstream.definition(MLA, "CPUMLAImpl.do_kv_cache_update")


def test_10_mhc_drops_the_norm() -> None:
    body = upstream.definition("model_executor/layers/mhc.py", "MHCFusedPostPreOp.forward_cpu")
    assert "norm_weight: torch.Tensor" in body
    assert "norm_weight" not in body.partition("mhc_pre_cpu(")[2]
    kernel = upstream.definition("model_executor/kernels/mhc/cpu.py", "mhc_pre_cpu")
    assert kernel.count("norm_weight") == 1  # a parameter that nothing reads
    assert "norm_weight=" in upstream.text("models/glm5next/common/model.py")


def test_11_prefix_caching_and_the_hybrid_cache() -> None:
    body = upstream.definition("config/vllm.py", "VllmConfig.validate_mamba_block_size")
    assert "--mamba-block-size can only be set with --enable-prefix-caching" in body


def test_12_the_conv_forgets_accepted_tokens() -> None:
    body = upstream.definition(
        "model_executor/layers/mamba/ops/cpu/causal_conv1d.py", "causal_conv1d_update_cpu"
    )
    assert "**kwargs" in body
    assert "num_accepted_tokens" not in body
    assert "num_accepted_tokens=num_accepted_tokens" in upstream.text(KDA)


def test_13_mtp_norm_is_triton() -> None:
    assert "import tl, triton" in upstream.text("models/glm5next/nvidia/ops/fused_eh_norm.py")
    assert "import fused_eh_norm" in upstream.text("models/glm5next/common/mtp.py")


def test_14_native_experts_forget_the_limit() -> None:
    assert "swiglu_limit" not in upstream.definition(
        "model_executor/layers/fused_moe/experts/cpu_moe.py", "CPUUnquantizedExperts"
    )
    assert "self.swiglu_limit = swiglu_limit" in upstream.text(
        "model_executor/layers/fused_moe/routed_experts.py"
    )


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (
            "model_executor/layers/fused_moe/fused_moe_method_base.py",
            "FusedMoEMethodBase.apply",
            ("layer", "x", "topk_weights", "topk_ids", "shared_experts", "shared_experts_input"),
        ),
        (
            "model_executor/layers/fused_moe/fused_moe_method_base.py",
            "FusedMoEMethodBase.create_weights",
            ("num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype"),
        ),
        (
            "model_executor/layers/fused_moe/routed_experts.py",
            "RoutedExperts.load_weights",
            (
                "param=param",
                "loaded_weight=",
                "weight_name=",
                "shard_id=",
                "expert_id=",
                "return_success=True",
            ),
        ),
        (
            "model_executor/layers/quantization/base_config.py",
            "QuantizationConfig.maybe_update_config",
            ("model_name", "hf_config", "revision"),
        ),
        (
            "model_executor/layers/quantization/base_config.py",
            "QuantizationConfig.override_quantization_method",
            ("hf_quant_cfg", "user_quant", "hf_config"),
        ),
    ],
)
def test_the_hooks_of_the_plug_in(module: str, name: str, words: tuple[str, ...]) -> None:
    body = upstream.definition(module, name)
    assert all(word in body for word in words)

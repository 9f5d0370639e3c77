"""The tiny model's sizes, and its config.json with the keys of the real checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes; the real model's in brackets.

    `hidden` and `expert` must be multiples of 128, `expert` of 128 per tensor-parallel rank.
    """

    vocab: int = 448  # 154,880
    hidden: int = 256  # 4,096
    dense: int = 512  # 12,288
    expert: int = 256  # 2,048
    experts: int = 8  # 288
    top_k: int = 2  # 8
    layers: int = 4  # 45; every fourth is MLA, the others KDA; the first is dense (the first three)
    heads: int = 4  # 64
    head: int = 64  # 256 for MLA
    kda_head: int = 64  # 128
    q_rank: int = 128  # 1,536
    kv_rank: int = 512  # 512
    index_heads: int = 16  # 64; with few, all may score a pool 0, and ties make the choice arbitrary
    index_dim: int = 128  # 128
    index_topk: int = 64  # 2,048
    pool: int = 4  # 4
    streams: int = 4  # 4
    bits: int = 4  # 4

    def is_mla(self, layer: int) -> bool:
        """Whether a trunk layer (or the MTP layer after them) has latent attention."""
        return layer % 4 == 3 or layer >= self.layers

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer >= 1


VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 64,
    "num_heads": 4,
    "intermediate_size": 128,
    "projection_intermediate_size": 128,
    "image_size": 28,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "model_type": "glm5_next_vision",
}


def config(shape: Shape, special: dict[str, int]) -> dict[str, Any]:
    """config.json.

    Args:
        special: ids of the special tokens, by name.
    """
    layers = range(shape.layers)
    text = {
        "model_type": "glm5_next_text",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense,
        "moe_intermediate_size": shape.expert,
        "num_hidden_layers": shape.layers,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.top_k,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        "hidden_act": "silu",
        "q_lora_rank": shape.q_rank,
        "kv_lora_rank": shape.kv_rank,
        "qk_nope_head_dim": shape.head,
        "qk_rope_head_dim": 0,
        "v_head_dim": shape.head,
        "mla_use_nope": True,
        "index_topk": shape.index_topk,
        "index_head_dim": shape.index_dim,
        "index_n_heads": shape.index_heads,
        "index_kpool": shape.pool,
        "index_kpool_always_select_tail": True,
        "indexer_rope_interleave": True,
        "indexer_types": ["full" for _ in layers],
        "layer_types": ["indexed_attention" if shape.is_mla(n) else "linear_attention" for n in layers],
        "mlp_layer_types": ["sparse" if shape.is_moe(n) else "dense" for n in layers],
        "linear_num_heads": shape.heads,
        "linear_head_dim": shape.kda_head,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        "mhc": True,
        "hc_mult": shape.streams,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": [special[name] for name in ("<|endoftext|>", "<|user|>", "<|observation|>")],
        "pad_token_id": special["<|endoftext|>"],
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_id": special["<|image|>"],
        "video_token_id": special["<|video|>"],
        "image_start_token_id": special["<|begin_of_image|>"],
        "image_end_token_id": special["<|end_of_image|>"],
        "video_start_token_id": special["<|begin_of_video|>"],
        "video_end_token_id": special["<|end_of_video|>"],
        "text_config": text,
        "vision_config": {**VISION, "out_hidden_size": shape.hidden},
        "quantization_config": {
            "quant_method": "exl3",
            "bits": shape.bits,
            "codebook": "mcg",
            "scope": "glm53_routed_experts_only",
        },
    }

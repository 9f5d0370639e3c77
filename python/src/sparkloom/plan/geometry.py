"""Sizes of GLM-5.3-Flash and of its DFlash2 drafter: every number that the memory plan starts from.

Source: the checkpoint's config.json and transformers' configuration class; bytes of one rank follow from the
tensor-parallel split that vLLM makes. Nothing here reads files.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

BF16 = 2
FP16 = 2
FP32 = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """The trunk. Widths in elements."""

    hidden: int = 4096
    vocabulary: int = 154_880
    kda_layers: int = 34
    mla_layers: int = 11
    dense_mlp_layers: int = 3
    dense_width: int = 12_288
    moe_layers: int = 42
    experts: int = 288
    experts_per_token: int = 8
    shared_experts: int = 1
    expert_width: int = 2048
    expert_bits: int = 4
    heads: int = 64
    # Linear attention (KDA): recurrent state per head, short convolution over q, k and v.
    kda_head_dim: int = 128
    conv_kernel: int = 4
    # Multi-head latent attention without positions, and its sparse indexer.
    q_lora: int = 1536
    kv_lora: int = 512
    qk_dim: int = 256
    v_dim: int = 256
    index_heads: int = 16
    index_dim: int = 128
    index_pool: int = 4
    index_topk: int = 2048
    # Residual streams (mHC): two sites per layer.
    streams: int = 4
    vision_parameters: int = 563_600_000
    max_context: int = 1_048_576

    @property
    def layers(self) -> int:
        """Trunk layers: 45."""
        return self.kda_layers + self.mla_layers

    def divides(self, world: int) -> bool:
        """Whether heads and expert width split over `world` ranks without padding."""
        return self.heads % world == 0 and self.expert_width % (128 * world) == 0

    def local(self, size: int, world: int) -> int:
        """A dimension of one rank, padded up where it does not divide."""
        return ceil(size / world)


@dataclass(frozen=True, slots=True)
class DraftGeometry:
    """DFlash2: five attention layers over a sliding window."""

    layers: int = 5
    kv_heads: int = 8
    head_dim: int = 128
    window: int = 2048
    bytes: int = 2_469_606_195  # 2.3 GiB of bf16, the published size

    def kv_bytes_per_token(self, world: int) -> int:
        """K and V of one layer, one token, one rank: 2048 bytes at two ranks."""
        return 2 * ceil(self.kv_heads / world) * self.head_dim * BF16


GLM_FLASH = Geometry()
DFLASH2 = DraftGeometry()


def expert_bytes(g: Geometry, world: int) -> int:
    """EXL3 routed experts of one rank: trellis, suh and svh of gate, up (by column) and down (by row)."""
    width = g.local(g.expert_width, world)
    trellis = 3 * g.hidden * width * g.expert_bits // 8
    scales = (2 * (g.hidden + width) + (width + g.hidden)) * FP16
    marks = 3 * 4  # one int32 codebook scalar per matrix
    return g.moe_layers * g.experts * (trellis + scales + marks)


def mtp_expert_bytes(g: Geometry, world: int) -> int:
    """Routed experts of the MTP layer, same format."""
    return expert_bytes(g, world) // g.moe_layers


def kda_bytes(g: Geometry, world: int) -> int:
    """One linear-attention layer of one rank in bf16: fused input projection, gates, convolution, output."""
    inner = g.local(g.heads, world) * g.kda_head_dim
    # q, k, v; beta (one per head); two low-rank gates whose first half every rank holds whole.
    fused = 3 * inner + g.local(g.heads, world) + 2 * g.kda_head_dim
    gates = 2 * g.kda_head_dim * inner
    convolution = 3 * inner * g.conv_kernel
    return BF16 * (fused * g.hidden + gates + convolution + inner * g.hidden) + FP32 * 2 * inner


def mla_bytes(g: Geometry, world: int) -> int:
    """One latent-attention layer of one rank in bf16, indexer included (held whole by every rank)."""
    heads = g.local(g.heads, world)
    down = g.hidden * (g.q_lora + g.kv_lora)
    up = g.q_lora * heads * g.qk_dim + g.kv_lora * heads * (g.qk_dim + g.v_dim)
    absorbed = g.kv_lora * heads * (g.qk_dim + g.v_dim)  # vLLM keeps the two absorbed halves beside kv_b
    indexer = g.hidden * (g.index_dim + g.index_heads) + g.q_lora * g.index_heads * g.index_dim
    return BF16 * (down + up + absorbed + indexer + heads * g.v_dim * g.hidden)


def dense_bytes(g: Geometry, world: int) -> int:
    """Dense MLPs, shared experts and routers of one rank."""
    mlp = g.dense_mlp_layers * 3 * g.hidden * g.local(g.dense_width, world) * BF16
    width = g.local(g.expert_width * g.shared_experts, world)
    shared = g.moe_layers * 3 * g.hidden * width * BF16
    router = g.moe_layers * g.experts * (g.hidden + 1) * FP32
    return mlp + shared + router


def embedding_bytes(g: Geometry, world: int) -> int:
    """Token embedding and output head of one rank (not tied)."""
    return 2 * g.local(g.vocabulary, world) * g.hidden * BF16


def stream_bytes(g: Geometry) -> int:
    """Residual-stream mixers: 2 per layer, a (4 + 4 + 16) x (4 * hidden) matrix in fp32, on every rank."""
    rows = 2 * g.streams + g.streams**2
    return 2 * g.layers * rows * g.streams * g.hidden * FP32


def vision_bytes(g: Geometry, world: int) -> int:
    """Vision tower of one rank in bf16, split over the ranks."""
    return ceil(g.vision_parameters * BF16 / world)


def mtp_layer_bytes(g: Geometry, world: int) -> int:
    """The MTP layer without its experts: latent attention, shared expert, router, fusing projection."""
    width = g.local(g.expert_width, world)
    fusing = 2 * g.hidden * g.hidden * BF16
    return mla_bytes(g, world) + 3 * g.hidden * width * BF16 + g.experts * g.hidden * FP32 + fusing

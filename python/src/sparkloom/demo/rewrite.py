"""Rewrite a Llama exactly as a Mixtral that two ranks can share, at multiples of 128.

SmolLM2-135M has 9 heads of 64 and a hidden width of 576: nothing of it splits over two ranks in blocks of
128, and it has no experts. The rewritten model computes the same function:

* Hidden channels are filled up with zeros (576 -> 640). RMSNorm divides by the root of the mean over more
  channels, so its weights are scaled by sqrt(576/640) and its epsilon by 576/640.
* Zero heads are added at the end, whole groups of grouped-query attention (9/3 -> 12/4); their outputs meet
  zero columns of o_proj.
* The MLP is cut along its width into experts that are *all* chosen for every token (1536 = 6 x 256). A router
  of zeros gives each the weight 1/6, which the factor 6 on the down projection undoes.

What remains is float rounding. `docs/demo.md` has the measured differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.errors import SparkloomError

Array = NDArray[np.float32]
Source = Callable[[str], Array]  # Hugging Face name of a Llama weight -> float32 [out, in]

BLOCK = 128  # EXL3's Hadamard blocks; a rank's share of every dimension is a multiple


@dataclass(frozen=True)
class LlamaShape:
    """Dimensions of the original model."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    norm_eps: float
    rope_theta: float
    context: int
    bos: int
    eos: int
    pad: int


@dataclass(frozen=True)
class Rewrite:
    """The rewritten model's dimensions and how its weights follow from the original's."""

    old: LlamaShape
    hidden: int
    heads: int
    kv_heads: int
    experts: int

    @property
    def expert_width(self) -> int:
        """Intermediate size of one expert."""
        return self.old.mlp // self.experts

    @property
    def norm_scale(self) -> float:
        """What RMSNorm weights are multiplied by."""
        return math.sqrt(self.old.hidden / self.hidden)

    def config(self) -> dict[str, Any]:
        """config.json of the rewritten model, without quantization."""
        return {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "vocab_size": self.old.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.expert_width,
            "num_hidden_layers": self.old.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.old.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.old.context,
            "rms_norm_eps": float(f"{self.old.norm_eps * self.old.hidden / self.hidden:.12g}"),
            "rope_theta": self.old.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.old.rope_theta},
            "sliding_window": None,
            "attention_dropout": 0.0,
            "num_experts_per_tok": self.experts,
            "num_local_experts": self.experts,
            "tie_word_embeddings": True,
            "bos_token_id": self.old.bos,
            "eos_token_id": self.old.eos,
            "pad_token_id": self.old.pad,
            "dtype": "float32",
        }

    def shared(self, source: Source) -> Iterator[tuple[str, Array]]:
        """Everything but the experts: name and weight in float32."""
        yield "model.embed_tokens.weight", self._columns(source("model.embed_tokens.weight"))
        yield "model.norm.weight", self._norm(source("model.norm.weight"))
        q_rows, kv_rows = (n * self.old.head_dim for n in (self.heads, self.kv_heads))
        for layer in range(self.old.layers):
            prefix = f"model.layers.{layer}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                yield f"{prefix}{norm}.weight", self._norm(source(f"{prefix}{norm}.weight"))
            for name, count in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                full = f"{prefix}self_attn.{name}_proj.weight"
                yield full, rows(self._columns(source(full)), count)
            full = f"{prefix}self_attn.o_proj.weight"
            yield full, rows(columns(source(full), q_rows), self.hidden)
            router = np.zeros((self.experts, self.hidden), np.float32)
            yield f"{prefix}block_sparse_moe.gate.weight", router

    def experts_of(self, layer: int, source: Source) -> Iterator[tuple[str, Array]]:
        """One layer's experts: module name (without `.weight`) and weight in float32 [out, in]."""
        prefix = f"model.layers.{layer}."
        gate, up, down = (source(f"{prefix}mlp.{x}_proj.weight") for x in ("gate", "up", "down"))
        for expert in range(self.experts):
            cut = slice(expert * self.expert_width, (expert + 1) * self.expert_width)
            name = f"{prefix}block_sparse_moe.experts.{expert}"
            yield f"{name}.w1", self._columns(gate[cut])
            yield f"{name}.w3", self._columns(up[cut])
            yield f"{name}.w2", rows(down[:, cut] * np.float32(self.experts), self.hidden)

    def _columns(self, weight: Array) -> Array:
        return columns(weight, self.hidden)

    def _norm(self, weight: Array) -> Array:
        out = np.zeros(self.hidden, np.float32)
        out[: self.old.hidden] = weight * np.float32(self.norm_scale)
        return out


def rows(weight: Array, count: int) -> Array:
    """Add zero rows at the end until there are `count`."""
    out = np.zeros((count, weight.shape[1]), np.float32)
    out[: weight.shape[0]] = weight
    return out


def columns(weight: Array, count: int) -> Array:
    """Add zero columns at the end until there are `count`."""
    out = np.zeros((weight.shape[0], count), np.float32)
    out[:, : weight.shape[1]] = weight
    return out


def plan(old: LlamaShape, ranks: int = 2) -> Rewrite:
    """Choose the smallest dimensions that split over `ranks` at multiples of 128.

    Errors: INPUT when the MLP's width cannot be cut into such experts, or heads do not form whole groups.
    """
    if old.heads % old.kv_heads:
        raise SparkloomError(
            "heads do not form whole groups",
            field="num_attention_heads",
            value=old.heads,
            mend=f"use a multiple of num_key_value_heads ({old.kv_heads})",
        )
    if old.mlp % (BLOCK * ranks):
        raise SparkloomError(
            f"the MLP's width cannot be cut into experts that {ranks} ranks share at multiples of {BLOCK}",
            field="intermediate_size",
            value=old.mlp,
            mend=f"use a model whose intermediate_size is a multiple of {BLOCK * ranks}",
        )
    kv_heads = up_to(old.kv_heads, ranks)
    return Rewrite(
        old,
        hidden=up_to(old.hidden, BLOCK),
        heads=kv_heads * (old.heads // old.kv_heads),
        kv_heads=kv_heads,
        experts=old.mlp // (BLOCK * ranks),
    )


def up_to(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step

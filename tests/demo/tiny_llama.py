"""A Llama and a Mixtral in NumPy, small enough to compare a rewrite with its original in milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom.demo.rewrite import LlamaShape

Array = NDArray[np.float32]
SHAPE = LlamaShape(
    vocab=97,
    hidden=144,
    layers=3,
    heads=9,
    kv_heads=3,
    head_dim=16,
    mlp=768,
    norm_eps=1e-5,
    rope_theta=10000.0,
    context=64,
    bos=1,
    eos=2,
    pad=2,
)


def weights(shape: LlamaShape = SHAPE, seed: int = 0) -> dict[str, Array]:
    """Random weights under Hugging Face names."""
    rng = np.random.default_rng(seed)

    def w(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    out = {
        "model.embed_tokens.weight": rng.standard_normal((shape.vocab, shape.hidden)).astype(np.float32),
        "model.norm.weight": rng.uniform(0.5, 2, shape.hidden).astype(np.float32),
    }
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        p = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{norm}.weight"] = rng.uniform(0.5, 2, shape.hidden).astype(np.float32)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            out[f"{p}self_attn.{name}_proj.weight"] = w(rows, shape.hidden)
        out[f"{p}self_attn.o_proj.weight"] = w(shape.hidden, q)
        out[f"{p}mlp.gate_proj.weight"] = w(shape.mlp, shape.hidden)
        out[f"{p}mlp.up_proj.weight"] = w(shape.mlp, shape.hidden)
        out[f"{p}mlp.down_proj.weight"] = w(shape.hidden, shape.mlp)
    return out


def logits(w: dict[str, Array], ids: list[int], config: dict[str, Any]) -> NDArray[np.float64]:
    """[len(ids), vocab] in float64, of a Llama or (with `num_local_experts`) a Mixtral."""
    t = {name: value.astype(np.float64) for name, value in w.items()}
    x = t["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        x = x + attention(norm(x, t[f"{p}input_layernorm.weight"], config), t, f"{p}self_attn.", config)
        h = norm(x, t[f"{p}post_attention_layernorm.weight"], config)
        x = x + (moe(h, t, p, config) if "num_local_experts" in config else mlp(h, t, f"{p}mlp."))
    return norm(x, t["model.norm.weight"], config) @ t["model.embed_tokens.weight"].T


def norm(x: Any, weight: Any, config: dict[str, Any]) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight


def attention(x: Any, t: dict[str, Any], p: str, config: dict[str, Any]) -> Any:
    d, heads, kv = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    n = len(x)
    q = rotate((x @ t[f"{p}q_proj.weight"].T).reshape(n, heads, d), config)
    k = rotate((x @ t[f"{p}k_proj.weight"].T).reshape(n, kv, d), config)
    v = (x @ t[f"{p}v_proj.weight"].T).reshape(n, kv, d)
    k, v = (np.repeat(a, heads // kv, axis=1) for a in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    p_ = np.exp(scores - scores.max(-1, keepdims=True))
    p_ /= p_.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", p_, v).reshape(n, -1) @ t[f"{p}o_proj.weight"].T


def rotate(x: Any, config: dict[str, Any]) -> Any:
    half = config["head_dim"] // 2
    angle = np.arange(len(x))[:, None] * config["rope_theta"] ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def mlp(x: Any, t: dict[str, Any], p: str) -> Any:
    hidden = silu(x @ t[f"{p}gate_proj.weight"].T) * (x @ t[f"{p}up_proj.weight"].T)
    return hidden @ t[f"{p}down_proj.weight"].T


def moe(x: Any, t: dict[str, Any], p: str, config: dict[str, Any]) -> Any:
    router = x @ t[f"{p}block_sparse_moe.gate.weight"].T
    chosen = np.argsort(-router, axis=-1, kind="stable")[:, : config["num_experts_per_tok"]]
    share = np.exp(router - router.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for row in range(len(x)):
        picked = share[row, chosen[row]] / share[row, chosen[row]].sum()
        for expert, weight in zip(chosen[row], picked, strict=True):
            e = f"{p}block_sparse_moe.experts.{expert}."
            hidden = silu(x[row] @ t[f"{e}w1.weight"].T) * (x[row] @ t[f"{e}w3.weight"].T)
            out[row] += weight * (hidden @ t[f"{e}w2.weight"].T)
    return out


def llama_config(shape: LlamaShape = SHAPE) -> dict[str, Any]:
    return {
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
    }

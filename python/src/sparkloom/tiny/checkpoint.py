"""Writes the tiny checkpoint: random weights under the real names, EXL3 experts from random bits, several
shards.

Any bit string is a valid trellis, so no encoder runs. Two things are not random:

* The output head favours, after token `c`, the next token of a ring that `c` belongs to. The text that
  comes out is no single loop (the layers have their say), but the MTP layer, which drafts from the last
  token's embedding alone, often guesses right: drafts are accepted, and some are refused.
* gate and up of an expert share their input scales, as in the real checkpoint.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3 import fp8
from sparkloom.exl3.options import BOOST, matches
from sparkloom.tiny import tokenizer
from sparkloom.tiny.shape import VISION, Shape, config

MCG = 0xCBAC1FED - (1 << 32)
SPREAD = 1.244  # standard deviation of the mcg codebook
RING = 24
PULL = 0.6
EMBED = 8.0
SHARDS = 5

Array = NDArray[Any]


class Maker:
    """Random tensors of the types that the checkpoint has."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int, std: float = 0.05, mean: float = 0.0) -> Array:
        """float32 from a normal distribution."""
        return (self.rng.standard_normal(shape) * std + mean).astype(np.float32)

    def exl3(self, k: int, n: int, bits: int, std: float, suh: Array | None = None) -> dict[str, Array]:
        """One EXL3 matrix whose dense weight has about the standard deviation `std`."""
        if suh is None:
            suh = self.signs(k)
        return {
            "trellis": self.rng.integers(-32768, 32768, (k // 16, n // 16, 16 * bits), dtype=np.int16),
            "suh": suh.astype(np.float16),
            "svh": (self.signs(n) * std / SPREAD).astype(np.float16),
            "mcg": np.array(MCG, dtype=np.int32),
        }

    def signs(self, size: int) -> Array:
        """Random signs times sizes near one."""
        return self.rng.choice([-1.0, 1.0], size) * self.rng.uniform(0.8, 1.25, size)


def attention(make: Maker, shape: Shape, layer: int) -> dict[str, Array]:
    """`self_attn.*` of one layer."""
    h, heads = shape.hidden, shape.heads
    if not shape.is_mla(layer):
        wide = heads * shape.kda_head
        found = {f"{x}_proj.weight": make.normal(wide, h) for x in "qkv"}
        found |= {f"{x}_conv1d.weight": make.normal(wide, 1, 4, std=0.3) for x in "qkv"}
        found |= {f"{x}_a_proj.weight": make.normal(shape.kda_head, h) for x in "fg"}
        found |= {f"{x}_b_proj.weight": make.normal(wide, shape.kda_head) for x in "fg"}
        return found | {
            "b_proj.weight": make.normal(heads, h),
            "A_log": make.rng.uniform(-0.5, 0.5, heads).astype(np.float32),
            "dt_bias": make.normal(wide, mean=-3.0, std=1.0),
            "o_norm.weight": np.ones(shape.kda_head, np.float32),
            "o_proj.weight": make.normal(h, wide),
        }
    return {
        "q_a_proj.weight": make.normal(shape.q_rank, h),
        "q_a_layernorm.weight": np.ones(shape.q_rank, np.float32),
        "q_b_proj.weight": make.normal(heads * shape.head, shape.q_rank),
        "kv_a_proj_with_mqa.weight": make.normal(shape.kv_rank, h),
        "kv_a_layernorm.weight": np.ones(shape.kv_rank, np.float32),
        "kv_b_proj.weight": make.normal(heads * 2 * shape.head, shape.kv_rank),
        "o_proj.weight": make.normal(h, heads * shape.head),
        "indexer.wq_b.weight": make.normal(shape.index_heads * shape.index_dim, shape.q_rank),
        "indexer.wk.weight": make.normal(shape.index_dim, h),
        "indexer.weights_proj.weight": make.normal(shape.index_heads, h),
        "indexer.k_norm.weight": np.ones(shape.index_dim, np.float32),
        "indexer.k_norm.bias": np.zeros(shape.index_dim, np.float32),
        "indexer.index_kpool_compress_ape": make.normal(shape.pool, shape.index_dim, std=0.1),
        "indexer.index_kpool_compress_gate": make.normal(shape.index_dim, h, std=0.1),
    }


def mlp(make: Maker, shape: Shape, layer: int, down: float) -> dict[str, Array]:
    """`mlp.*` of one layer; `down` is the size of the down projections."""
    h = shape.hidden

    def plain(prefix: str, wide: int) -> dict[str, Array]:
        return {
            f"{prefix}gate_proj.weight": make.normal(wide, h),
            f"{prefix}up_proj.weight": make.normal(wide, h),
            f"{prefix}down_proj.weight": make.normal(h, wide, std=down),
        }

    if not shape.is_moe(layer):
        return plain("", shape.dense)
    found = {
        "gate.weight": make.normal(shape.experts, h),
        "gate.e_score_correction_bias": make.normal(shape.experts),
    }
    for e in range(shape.experts):
        shared = make.signs(h)
        parts = {
            "gate_proj": make.exl3(h, shape.expert, shape.bits, 0.05, shared),
            "up_proj": make.exl3(h, shape.expert, shape.bits, 0.05, shared),
            "down_proj": make.exl3(shape.expert, h, shape.bits, down),
        }
        found |= {f"experts.{e}.{p}.{s}": t for p, tensors in parts.items() for s, t in tensors.items()}
    return found | plain("shared_experts.", shape.expert)


def trunk(make: Maker, shape: Shape, layer: int) -> dict[str, Array]:
    """One trunk layer."""
    n, h = shape.streams, shape.hidden
    found = {f"self_attn.{name}": t for name, t in attention(make, shape, layer).items()}
    found |= {f"mlp.{name}": t for name, t in mlp(make, shape, layer, 0.05).items()}
    for site in ("attn", "ffn"):
        found[f"hc_{site}_fn"] = make.normal((2 + n) * n, n * h, std=0.02)
        found[f"hc_{site}_base"] = make.normal((2 + n) * n, std=0.3)
        found[f"hc_{site}_scale"] = np.ones(3, np.float32)
    return found | norms(h)


def norms(hidden: int) -> dict[str, Array]:
    """The two norms of a layer."""
    return {
        f"{name}.weight": np.ones(hidden, np.float32)
        for name in ("input_layernorm", "post_attention_layernorm")
    }


def draft(make: Maker, shape: Shape) -> dict[str, Array]:
    """The MTP layer: it sees the last token's embedding alone and adds little of its own."""
    h, layer = shape.hidden, shape.layers
    attn = attention(make, shape, layer)
    attn["o_proj.weight"] *= 0.3
    found = {f"self_attn.{name}": t for name, t in attn.items()}
    found |= {f"mlp.{name}": t for name, t in mlp(make, shape, layer, 0.015).items()}
    found |= {f"{name}.weight": np.ones(h, np.float32) for name in ("enorm", "hnorm", "shared_head.norm")}
    found["eh_proj.weight"] = np.concatenate([np.eye(h), np.zeros((h, h))], 1).astype(np.float32)
    return found | norms(h)


def vision(make: Maker, hidden: int) -> dict[str, Array]:
    """The vision tower, `model.visual.*`; nothing on a CPU reads it."""
    d, wide, out = VISION["hidden_size"], VISION["intermediate_size"], VISION["projection_intermediate_size"]

    def weights(std: float = 0.02, **shapes: tuple[int, ...]) -> dict[str, Array]:
        return {name.replace("__", "."): make.normal(*shape, std=std) for name, shape in shapes.items()}

    block = weights(
        attn__qkv__weight=(3 * d, d),
        attn__proj__weight=(d, d),
        mlp__gate_proj__weight=(wide, d),
        mlp__up_proj__weight=(wide, d),
        mlp__down_proj__weight=(d, wide),
    )
    for name in ("norm1.weight", "norm2.weight"):
        block[name] = np.ones(d, np.float32)
    for name in ("attn.q_norm.weight", "attn.k_norm.weight"):
        block[name] = np.ones(d // VISION["num_heads"], np.float32)
    for name, size in (
        ("attn.qkv", 3 * d),
        ("attn.proj", d),
        ("mlp.gate_proj", wide),
        ("mlp.up_proj", wide),
        ("mlp.down_proj", d),
    ):
        block[f"{name}.bias"] = np.zeros(size, np.float32)
    found = {f"blocks.0.{name}": t for name, t in block.items()}
    found |= weights(
        patch_embed__proj__weight=(d, 3, 2, 14, 14),
        downsample__weight=(hidden, d, 2, 2),
        merger__proj__weight=(hidden, hidden),
        merger__gate_proj__weight=(out, hidden),
        merger__up_proj__weight=(out, hidden),
        merger__down_proj__weight=(hidden, out),
    )
    found["patch_embed.proj.bias"] = np.zeros(d, np.float32)
    found["downsample.bias"] = np.zeros(hidden, np.float32)
    found["merger.post_projection_norm.weight"] = np.ones(hidden, np.float32)
    found["merger.post_projection_norm.bias"] = np.zeros(hidden, np.float32)
    found["post_layernorm.weight"] = np.ones(d, np.float32)
    return found


def ring_after(token: int, used: int, ring: int = RING) -> int:
    """The token that the output head favours after `token`: the next of its ring.

    Args:
        token: an id that is not special.
        used: how many of the vocabulary's ids the tokenizer has.
        ring: tokens of a ring.
    """
    start = len(tokenizer.SPECIAL)
    first = start + (token - start) // ring * ring
    return first + (token - first + 1) % min(ring, used - first)


def tensors(
    shape: Shape, seed: int = 0, used: int = 399, *, ring: int = RING, pull: float = PULL
) -> Iterator[tuple[str, Array]]:
    """Every tensor of the checkpoint, float32 where it is to be stored as bfloat16 or float32.

    Args:
        used: how many of the vocabulary's ids the tokenizer has.
        ring: tokens of a ring.
        pull: how strongly the output head favours the next token of the ring.
    """
    make = Maker(seed)
    embed = make.normal(shape.vocab, shape.hidden)
    head = make.normal(shape.vocab, shape.hidden)
    plain = range(len(tokenizer.SPECIAL), used)
    for token in plain:
        head[ring_after(token, used, ring)] += pull * embed[token] / np.linalg.norm(embed[token])
    head[: plain.start] *= 0.2  # special and unused tokens are seldom the best
    head[plain.stop :] *= 0.2
    root = "model.language_model."
    yield root + "embed_tokens.weight", embed * np.float32(EMBED)
    for layer in range(shape.layers):
        for name, tensor in trunk(make, shape, layer).items():
            yield f"{root}layers.{layer}.{name}", tensor
    for name, tensor in draft(make, shape).items():
        yield f"{root}layers.{shape.layers}.{name}", tensor
    yield root + "norm.weight", np.ones(shape.hidden, np.float32)
    for name, tensor in vision(make, shape.hidden).items():
        yield f"model.visual.{name}", tensor
    yield "lm_head.weight", head


DENSE = ("native", "exl3", "fp8")


def quantised(name: str, tensor: Array, kind: str, make: Maker) -> Iterator[tuple[str, Array]]:
    """One tensor as it is, or a dense projection as EXL3 (from random bits, at 4 to 6 bits) or as FP8."""
    chosen = matches(name, (*BOOST, "*layers.*.self_attn.kv_b_proj"))
    n, k = tensor.shape if tensor.ndim == 2 else (0, 0)
    stem = name.removesuffix(".weight")
    if kind == "exl3" and chosen and not k % 128 and not n % 128:
        bits = 4 + len(name) % 3
        found = make.exl3(k, n, bits, float(tensor.std()))
        yield from ((f"{stem}.{suffix}", value) for suffix, value in found.items())
    elif kind == "fp8" and chosen:
        whole = not k % 128 and not n % 128
        odd = int(name.partition("layers.")[2].partition(".")[0] or 1) % 2  # so that both kinds are there
        matrix = fp8.encode(tensor, "block" if whole and not odd else "channel")
        yield name, matrix.codes
        yield f"{stem}.{fp8.SUFFIX[matrix.scales]}", matrix.scale
    else:
        yield name, tensor


KEPT_FLOAT32 = ("e_score_correction_bias", "conv1d", "dt_bias", "A_log", ".hc_")
DTYPES = {"float32": "F32", "float16": "F16", "int16": "I16", "int32": "I32"}


def stored(name: str, tensor: Array) -> tuple[str, Array]:
    """Type and bits of a tensor in the file; float32 becomes bfloat16 unless the architecture keeps it."""
    if tensor.dtype == np.uint8:
        return "F8_E4M3", tensor
    if tensor.dtype != np.float32 or "weight_scale" in name or any(part in name for part in KEPT_FLOAT32):
        return DTYPES[tensor.dtype.name], np.ascontiguousarray(tensor).reshape(tensor.shape)  # keeps ()
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return "BF16", ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)


def save(path: Path, shard: dict[str, tuple[str, Array]]) -> None:
    """Write one safetensors file. (The package's NumPy writer has no bfloat16.)"""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, bits) in shard.items():
        table[name] = {"dtype": dtype, "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with fsio.replacing(path) as part, part.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, bits in shard.values():
            file.write(bits.tobytes())


def ours(name: str) -> bool:
    """Whether `write` makes (or, interrupted, leaves) a file of this name."""
    return name.removeprefix(".").startswith(
        ("model", "config.json", "generation_config", "tokenizer", "chat_template")
    )


def write(
    folder: Path,
    *,
    shape: Shape | None = None,
    seed: int = 0,
    ring: int = RING,
    pull: float = PULL,
    dense: str = "native",
) -> dict[str, Any]:
    """Write the whole checkpoint to `folder`.

    Args:
        shape, seed: of the model.
        ring, pull: see `tensors`.
        dense: how the dense projections are stored: `native`, `exl3` or `fp8`.

    Returns:
        What was written: number of tensors and shards, bytes.

    Raises:
        SparkloomError: the folder holds something else.
    """
    strange = [entry.name for entry in folder.glob("*") if not ours(entry.name)]
    if strange:
        raise SparkloomError(
            f"the folder holds something else: {strange[0]}",
            file=folder,
            mend="give a new or an empty folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    shape = shape or Shape()
    if dense not in DENSE:
        raise SparkloomError(
            "no such kind of dense weights",
            field="dense",
            value=dense,
            mend="use native, exl3 or fp8",
            code=Exit.USAGE,
        )
    special, used = tokenizer.write(folder, shape.vocab)
    make = Maker(seed + 1)
    everything = [
        (part, stored(part, value))
        for name, tensor in tensors(shape, seed, used, ring=ring, pull=pull)
        for part, value in quantised(name, tensor, dense, make)
    ]
    total = sum(bits.nbytes for _, (_, bits) in everything)
    shards: list[dict[str, tuple[str, Array]]] = [{} for _ in range(SHARDS)]
    at = 0
    for name, entry in everything:  # in order, about equal sizes
        shards[min(at * SHARDS // total, SHARDS - 1)][name] = entry
        at += entry[1].nbytes
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        save(folder / file, shard)
        index |= dict.fromkeys(shard, file)
    fsio.write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index}
    )
    settings = config(shape, special)
    fsio.write_json(
        folder / "generation_config.json",
        {
            "eos_token_id": settings["text_config"]["eos_token_id"],
            "pad_token_id": settings["text_config"]["pad_token_id"],
        },
    )
    fsio.write_json(folder / "config.json", settings)  # last: a folder without it is not a checkpoint
    return {"path": str(folder), "tensors": len(index), "shards": SHARDS, "bytes": total}

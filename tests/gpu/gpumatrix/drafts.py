"""DFlash2 drafts whose drafts are accepted, with weights set by hand for a target that follows rings.

The target's output head favours, after a token, the next of its ring (`sparkloom.tiny`). A draft needs
two things: which ring the text is in, and which token of it comes next. The first comes out of the hidden
states; all tokens of a ring get the same logit there, so the candidates are the ring's and nothing says
which is next. The second comes from the candidate selector alone: its codebooks hold `next of`. A selector
that does not work, or a walk that takes the wrong predecessor, drafts tokens that are hardly ever accepted.

Where the ring comes from is the `source`, one part of the architecture each:

* `anchor`: attention of the masked rows to the anchor's row of the same block;
* `conv`: the grouped convolutions alone carry it from row to row (two rows a convolution);
* `context`: attention to the newest row of the context cache, which the draft makes of the target's hidden
  states. A cache row that should have been rolled back, or lies at a wrong position, gives a wrong ring.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkloom.tiny import tokenizer
from sparkloom.tiny.checkpoint import ring_after

SOURCES = ("anchor", "conv", "context")
LAYERS, HEADS, HEAD, RANK, TAPS, GROUP, TAP_LAYERS = 2, 8, 64, 64, 3, 64, (0, 1, 2)
FIT_TOKENS = 4096


def rings(used: int, ring: int) -> list[int]:
    """The ring of every token id below `used`; -1 for special ones."""
    start = len(tokenizer.SPECIAL)
    return [-1 if token < start else (token - start) // ring for token in range(used)]


def config(hidden: int, vocab: int, top_k: int) -> dict[str, Any]:
    """config.json of the draft, with the keys of the published drafts."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * LAYERS,
        "sliding_window": 2048,
        "use_sliding_window": True,
        "max_window_layers": LAYERS,
        "block_size": 8,
        "dflash_config": {
            "selector_top_k": top_k,
            "selector_rank": RANK,
            "conv_kernel_size": TAPS,
            "conv_group_size": GROUP,
            "target_layer_ids": list(TAP_LAYERS),
            "mask_token_id": vocab - 1,
            "use_swa": True,
            "swa_window_size": 2048,
            "causal": False,
        },
    }


def ring_features(target: Path, used: int, kinds: list[int]) -> Any:
    """Least-squares map from the target's stream after layer 0 to (ring one-hot, 1): [rings + 1, hidden]."""
    import torch
    from transformers import Glm5NextForConditionalGeneration

    model = Glm5NextForConditionalGeneration.from_pretrained(target, dtype=torch.float32).eval()
    seen: list[Any] = []
    layer = model.model.language_model.layers[0]

    def keep(_module: Any, _args: Any, out: Any) -> None:
        seen.append((out[0] if isinstance(out, tuple) else out).detach())

    handle = layer.register_forward_hook(keep)
    generator = torch.Generator().manual_seed(2)
    first = len(tokenizer.SPECIAL)
    ids = torch.randint(first, used, (8, FIT_TOKENS // 8), generator=generator)
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    handle.remove()
    stream = seen[0]  # [batch, tokens, streams, hidden]
    features = stream.mean(2).flatten(0, 1) if stream.ndim == 4 else stream.flatten(0, 1)
    wanted = torch.zeros(len(features), max(kinds) + 2)
    wanted[torch.arange(len(features)), torch.tensor(kinds)[ids.flatten()]] = 1
    wanted[:, -1] = 1
    scale = features.pow(2).mean().sqrt()
    x = torch.cat([features / scale, 0.3 * torch.eye(features.shape[1]) * len(features) ** 0.5 * 0.1])
    y = torch.cat([wanted, torch.zeros(features.shape[1], wanted.shape[1])])
    return torch.linalg.lstsq(x, y).solution.T / scale


def weights(
    hidden: int, vocab: int, used: int, ring: int, source: str, features: Any = None
) -> dict[str, Any]:
    """All tensors of a draft, float32.

    Dimensions of the hidden state: the ring of a token's embedding, the mask flag, the ring and the constant
    of a context row, and the ring as carried to the masked rows, which the output head reads.
    """
    import torch

    kinds = rings(used, ring)
    count = max(kinds) + 1
    own, flag, context, carried = 0, count, count + 1, 2 * count + 2
    if carried + count > hidden or count > HEAD:
        raise ValueError(f"{count} rings do not fit into {hidden} dimensions")
    eye = torch.eye(count)
    unit = hidden**-0.5  # a normed one-hot vector has length one again
    found: dict[str, Any] = {
        "norm.weight": torch.full((hidden,), unit),
        "hidden_norm.weight": torch.full((hidden,), unit),
        "fc.weight": torch.zeros(hidden, len(TAP_LAYERS) * hidden),
        "embed_tokens.weight": torch.zeros(vocab, hidden),
        "lm_head.weight": torch.zeros(vocab, hidden),
    }
    for token, kind in enumerate(kinds):
        if kind >= 0:
            found["embed_tokens.weight"][token, own + kind] = 1
            found["lm_head.weight"][token, carried + kind] = 20
    found["embed_tokens.weight"][vocab - 1, flag] = 1
    wide = HEADS * HEAD
    for n in range(LAYERS):
        root = f"layers.{n}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{root}{name}.weight"] = torch.full((hidden,), unit)
        for name, shape in (
            ("self_attn.q_proj", (wide, hidden)),
            ("self_attn.k_proj", (wide, hidden)),
            ("self_attn.v_proj", (wide, hidden)),
            ("self_attn.o_proj", (hidden, wide)),
            ("mlp.gate_proj", (256, hidden)),
            ("mlp.up_proj", (256, hidden)),
            ("mlp.down_proj", (hidden, 256)),
        ):
            found[f"{root}{name}.weight"] = torch.zeros(shape)
        found[f"{root}self_attn.q_norm.weight"] = torch.full((HEAD,), 24.0 if source == "context" else 6.0)
        found[f"{root}self_attn.k_norm.weight"] = torch.ones(HEAD)
        for name in ("attention_conv", "mlp_conv"):
            kernel = torch.zeros(2, TAPS, hidden)
            kernel[:, 0] = 1  # each row itself
            if source == "conv" and name == "mlp_conv":
                kernel[:, 1:] = 1
            found[f"{root}{name}.base_kernel"] = kernel
            projection = torch.zeros(2 * TAPS * (hidden // GROUP), hidden)
            found[f"{root}{name}.kernel_projection.weight"] = projection
    if source == "conv":
        for n in range(LAYERS):
            gate, up = found[f"layers.{n}.mlp.gate_proj.weight"], found[f"layers.{n}.mlp.up_proj.weight"]
            for block in (own, carried):
                up[:count, block : block + count] += eye
                gate[:count, block : block + count] = 8
            gate[:count, flag] = 8
            found[f"layers.{n}.mlp.down_proj.weight"][carried : carried + count, :count] = eye
    else:
        root = "layers.0.self_attn."
        q, k, v = (found[f"{root}{x}_proj.weight"] for x in "qkv")
        if source == "anchor":
            q[HEAD // 2 - 1, flag] = 1  # the slowest frequency: distance does not matter
            k[HEAD // 2 - 1, own : own + count] = 1
            v[:count, own : own + count] = eye
        else:
            q[: HEAD // 2, flag] = 1  # all frequencies: the nearest row wins
            k[: HEAD // 2, context + count] = 1
            v[:count, context : context + count] = eye
            found["fc.weight"][context : context + count + 1, :hidden] = features
        found[f"{root}o_proj.weight"][carried : carried + count, :count] = eye
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 2, (vocab, RANK), generator=generator).float() - 0.5
    before = torch.zeros(vocab, RANK)
    for token, kind in enumerate(kinds):
        if kind >= 0:
            before[token] = codes[ring_after(token, used, ring)]
    found["candidate_selector.predecessor_codebook"] = before
    found["candidate_selector.successor_codebook"] = codes
    projection = torch.zeros(RANK, hidden)
    projection[:, flag] = 2
    found["candidate_selector.hidden_projection.weight"] = projection
    return found


def write(folder: Path, target: Path, hidden: int, vocab: int, used: int, ring: int, source: str) -> None:
    """Write one draft."""
    from safetensors.torch import save_file

    features = ring_features(target, used, rings(used, ring)) if source == "context" else None
    tensors = weights(hidden, vocab, used, ring, source, features)
    folder.mkdir()
    stored = {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(hidden, vocab, ring), indent=1))

"""The matrix's tiny models, made on the machine in seconds: random weights, real names and per-head sizes.

| folder | what |
|---|---|
| `glm` | GLM-5.3-Flash, text only, EXL3 experts, an MTP layer whose drafts are often right |
| `glm-dense` | the same weights, decoded to bfloat16 |
| `glm-hf` | the dense weights under the names that transformers reads: the teacher |
| `glm-small`, `glm-small-dense` | `glm` with EXL3 dense projections as well, and decoded |
| `glm-fp8`, `glm-fp8-dense` | `glm` with weight-only FP8 dense projections, and decoded |
| `qwen`, `qwen-dense` | Qwen3-MoE, EXL3 experts and decoded |
| `qwen-packed`, `qwen-packed-dense` | the same with EXL3 q, k, v and o projections too, and decoded |
| `draft-anchor`, `draft-conv`, `draft-context` | DFlash2 drafts that hit (`drafts.py`) |
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gpumatrix import drafts
from sparkloom.tiny.shape import Shape

RING, PULL, QWEN_PULL = 16, 2.4, 1.0
GLM = Shape(
    hidden=512,
    dense=512,
    expert=128,
    head=256,
    kda_head=128,
    q_rank=256,
    index_topk=2048,
)
"""True per-head sizes: latent heads of 256, linear heads of 128, 16 index heads of 128, pools of 4."""
POSITIONS = 131_072
QWEN = ("qwen", "qwen-packed")
PACKED = ("glm", "glm-small", "glm-fp8", *QWEN)
ALL = ("glm-hf", *PACKED, *(f"{name}-dense" for name in PACKED))
ALL += ("draft-anchor", "draft-conv", "draft-context")


def make(folder: Path) -> dict[str, Any]:
    """Make every model under `folder`; what is there already stays. Returns the facts that rows need."""
    facts_file = folder / "facts.json"
    if facts_file.exists():
        found: dict[str, Any] = json.loads(facts_file.read_text())
        return found
    from sparkloom.tiny.checkpoint import write
    from sparkloom.vllm.dense import write_dense

    folder.mkdir(parents=True, exist_ok=True)
    for name in (*ALL, "raw", "raw-fp8"):
        shutil.rmtree(folder / name, ignore_errors=True)
    write(folder / "raw", shape=GLM, ring=RING, pull=PULL)
    used = len(json.loads((folder / "raw" / "tokenizer.json").read_text())["model"]["vocab"])
    edit_config(folder / "raw", layer_kinds)
    write_dense(folder / "raw", folder / "glm-hf")
    text_only(folder / "raw", folder / "glm")
    text_only(folder / "glm-hf", folder / "glm-dense")
    quantise_dense(folder / "glm", folder / "glm-small")
    write_dense(folder / "glm-small", folder / "glm-small-dense")
    write(folder / "raw-fp8", shape=GLM, ring=RING, pull=PULL, dense="fp8")
    edit_config(folder / "raw-fp8", layer_kinds)
    text_only(folder / "raw-fp8", folder / "glm-fp8")
    shutil.rmtree(folder / "raw-fp8")
    write_dense(folder / "glm-fp8", folder / "glm-fp8-dense")
    for name in QWEN:
        write_qwen(folder / name, packed=name == "qwen-packed")
        for extra in (folder / "raw").glob("tokenizer*"):
            shutil.copy(extra, folder / name)
        write_dense(folder / name, folder / f"{name}-dense")
    shutil.rmtree(folder / "raw")
    for source in drafts.SOURCES:
        drafts.write(folder / f"draft-{source}", folder / "glm-hf", GLM.hidden, GLM.vocab, used, RING, source)
    facts = {"used": used, "ring": RING, "vocab": GLM.vocab}
    facts_file.write_text(json.dumps(facts))
    return facts


def edit_config(folder: Path, change: Any) -> None:
    """Apply `change` to the text part of config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config.get("text_config", config))
    path.write_text(json.dumps(config, indent=1))


def layer_kinds(text: dict[str, Any]) -> None:
    """The name of the sparse layers that the transformers here knows (renamed in 5.19); more positions."""
    from importlib.metadata import version

    release = tuple(int(part) for part in version("transformers").split(".")[:2])
    if release < (5, 19):
        text["layer_types"] = [
            "deepseek_sparse_attention" if kind == "indexed_attention" else kind
            for kind in text["layer_types"]
        ]
    text["max_position_embeddings"] = POSITIONS


def text_only(source: Path, target: Path) -> None:
    """Keep the text tower and the MTP layer, as architecture `Glm5NextForCausalLM`."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for extra in source.iterdir():
        if extra.name.startswith(("tokenizer", "chat_template", "generation_config")):
            shutil.copy(extra, target)
    weights = {}
    for shard in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            if ".visual." not in name:
                weights[name.replace("model.language_model.", "model.")] = tensor
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = ["Glm5NextForCausalLM"]
    (target / "config.json").write_text(json.dumps(config, indent=1))


DENSE = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_b_proj"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    *(f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")),
)


def quantise_dense(source: Path, target: Path) -> int:
    """A copy of a checkpoint whose dense projections are EXL3 of random bits, of about the same size.

    Returns how many there are.
    """
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    from sparkloom.tiny.checkpoint import Maker

    shutil.copytree(source, target)
    make, count = Maker(5), 0
    weights = load_file(target / "model.safetensors")
    for name in sorted(weights):
        stem = name.removesuffix(".weight")
        if name.startswith("model.layers.") and stem.split(".", 3)[3] in DENSE:
            n, k = weights[name].shape
            spread = float(weights.pop(name).float().std())
            for kind, tensor in make.exl3(k, n, 4, spread).items():
                weights[f"{stem}.{kind}"] = torch.from_numpy(
                    np.ascontiguousarray(tensor).reshape(tensor.shape)
                )
            count += 1
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return count


def write_qwen(folder: Path, packed: bool = False) -> None:
    """Qwen3-MoE: 3 layers, 8 experts of 128, EXL3 of 4 bits from random bits.

    With `packed` the attention's projections are EXL3 too, as in checkpoints whose dense layers are.
    """
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from sparkloom.tiny.checkpoint import Maker

    hidden, heads, kv, head, experts, wide, layers, vocab = 256, 4, 2, 64, 8, 128, 3, 512
    make = Maker(3)
    found: dict[str, Any] = {
        "model.embed_tokens.weight": make.normal(vocab, hidden, std=0.4),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": make.normal(vocab, hidden),
    }
    for layer in range(layers):
        root = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{root}{name}.weight"] = np.ones(hidden, np.float32)
        for name, rows in (("q", heads * head), ("k", kv * head), ("v", kv * head), ("o", hidden)):
            columns = heads * head if name == "o" else hidden
            tensors = make.exl3(columns, rows, 4, 0.05) if packed else {"weight": make.normal(rows, columns)}
            found |= {f"{root}self_attn.{name}_proj.{kind}": tensor for kind, tensor in tensors.items()}
        for name in ("q_norm", "k_norm"):
            found[f"{root}self_attn.{name}.weight"] = np.ones(head, np.float32)
        found[f"{root}mlp.gate.weight"] = make.normal(experts, hidden)
        for e in range(experts):
            shared = make.signs(hidden)
            parts = {
                "gate_proj": make.exl3(hidden, wide, 4, 0.05, shared),
                "up_proj": make.exl3(hidden, wide, 4, 0.05, shared),
                "down_proj": make.exl3(wide, hidden, 4, 0.05),
            }
            for part, tensors in parts.items():
                for kind, tensor in tensors.items():
                    found[f"{root}mlp.experts.{e}.{part}.{kind}"] = tensor
    for token in range(23, vocab):  # decisive: each token favours the next number
        embed = found["model.embed_tokens.weight"][token]
        found["lm_head.weight"][23 + (token - 22) % (vocab - 23)] += QWEN_PULL * embed / np.linalg.norm(embed)
    folder.mkdir()
    stored = {}
    for name, array in found.items():
        tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(np.shape(array)))
        stored[name] = tensor.bfloat16() if tensor.dtype == torch.float32 else tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "bfloat16",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "moe_intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "exl3", "bits": 4, "codebook": "mcg"},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))

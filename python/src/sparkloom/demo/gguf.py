"""Read the GGUF of a Llama-type model: weights in float32 under Hugging Face names, and the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom import fsio
from sparkloom.demo.rewrite import LlamaShape
from sparkloom.errors import SparkloomError

Array = NDArray[np.float32]

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in OTHER_NAMES:
        return f"{OTHER_NAMES[parts[0]]}.{parts[1]}"
    raise SparkloomError(
        "unknown tensor in a GGUF of this architecture", field=name, mend="use the known file"
    )


def unpermute(weight: Array, heads: int) -> Array:
    """Undo llama.cpp's row order of q and k (pairs side by side) for rotary halves, [heads * d, n]."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


class GgufModel:
    """A GGUF file, tensor by tensor; nothing is dequantised before it is asked for.

    Errors: INPUT when the file is damaged or of another architecture.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        try:
            self._reader = GGUFReader(path)
            self.architecture = str(self.field("general.architecture"))
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise SparkloomError(
                f"not a readable GGUF file: {error}", file=path, mend="delete it and run this again"
            ) from None
        if self.architecture != "llama":
            raise SparkloomError(
                "only Llama-type models can be rewritten",
                file=path,
                field="general.architecture",
                value=self.architecture,
                mend="use the demo's own model",
            )
        self._tensors = {hugging_face_name(t.name): t for t in self._reader.tensors}

    def field(self, name: str) -> Any:
        """A metadata value."""
        return self._reader.fields[name].contents()

    def shape(self) -> LlamaShape:
        """The model's dimensions as its metadata say."""
        heads = int(self.field("llama.attention.head_count"))
        hidden = int(self.field("llama.embedding_length"))
        return LlamaShape(
            vocab=int(self.field("llama.vocab_size")),
            hidden=hidden,
            layers=int(self.field("llama.block_count")),
            heads=heads,
            kv_heads=int(self.field("llama.attention.head_count_kv")),
            head_dim=hidden // heads,
            mlp=int(self.field("llama.feed_forward_length")),
            norm_eps=float(f"{self.field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            rope_theta=float(self.field("llama.rope.freq_base")),
            context=int(self.field("llama.context_length")),
            bos=int(self.field("tokenizer.ggml.bos_token_id")),
            eos=int(self.field("tokenizer.ggml.eos_token_id")),
            pad=int(self.field("tokenizer.ggml.padding_token_id")),
        )

    def __call__(self, name: str) -> Array:
        """A weight in float32, rows are outputs: [out, in]."""
        from gguf import dequantize

        tensor = self._tensors[name]
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name.endswith("q_proj.weight"):
            return unpermute(weight, int(self.field("llama.attention.head_count")))
        if name.endswith("k_proj.weight"):
            return unpermute(weight, int(self.field("llama.attention.head_count_kv")))
        return weight

    def save_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja for transformers and vLLM."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokens: list[str] = self.field("tokenizer.ggml.tokens")
        kinds: list[int] = self.field("tokenizer.ggml.token_type")
        merges = [tuple(pair.split(" ")) for pair in self.field("tokenizer.ggml.merges")]
        if self.field("tokenizer.ggml.pre") != "smollm":
            raise SparkloomError(
                "unknown pre-tokenizer",
                file=self.path,
                field="tokenizer.ggml.pre",
                value=self.field("tokenizer.ggml.pre"),
                mend="use the demo's own model",
            )
        made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        made.decoder = decoders.ByteLevel()
        special = [
            t for t, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)
        ]  # control, user-defined
        made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
        fsio.write_text(folder / "tokenizer.json", made.to_str())
        named = {
            "bos_token": tokens[self.field("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[self.field("tokenizer.ggml.eos_token_id")],
            "pad_token": tokens[self.field("tokenizer.ggml.padding_token_id")],
            "unk_token": tokens[self.field("tokenizer.ggml.unknown_token_id")],
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **named,
            "model_max_length": int(self.field("llama.context_length")),
            "clean_up_tokenization_spaces": False,
        }
        fsio.write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
        fsio.write_text(folder / "chat_template.jinja", self.field("tokenizer.chat_template"))

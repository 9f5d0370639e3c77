"""A byte-level tokenizer with GLM's special tokens and a small chat template."""

from __future__ import annotations

import json
import random
from pathlib import Path

from sparkloom import fsio

SPECIAL = (
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|begin_of_image|>",
    "<|image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|video|>",
    "<|end_of_video|>",
)

TEMPLATE = """[gMASK]<sop>
{%- if tools -%}
<|system|>
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|observation|>
<tool_response>{{ message.content }}</tool_response>
{%- else -%}
<|{{ message.role }}|>
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content or [] if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key><arg_value>{{ value if value is string else value | tojson }}</arg_value>
{%- endfor -%}
</tool_call>
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{% if enable_thinking is defined and not enable_thinking -%}<think></think>{%- endif -%}
{%- endif -%}
"""

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "two",
    "small",
    "machines",
    "share",
    "one",
    "cable",
    "and",
    "serve",
    "tokens",
    "hello",
    "world",
    "spark",
    "loom",
    "model",
    "expert",
    "layer",
    "thread",
    "weave",
]


def write(folder: Path, vocab: int) -> tuple[dict[str, int], int]:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Returns the special tokens' ids and the number of tokens.

    Args:
        vocab: at most this many tokens; the training stops earlier when it runs out of pairs.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    lines = [" ".join(rng.choices(WORDS, k=12)) for _ in range(400)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    fsio.write_text(folder / "tokenizer.json", json.dumps(json.loads(tokenizer.to_str()), indent=1))
    fsio.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "extra_special_tokens": list(SPECIAL),
            "model_max_length": 4096,
            "clean_up_tokenization_spaces": False,
        },
    )
    fsio.write_text(folder / "chat_template.jinja", TEMPLATE)
    return {name: number for number, name in enumerate(SPECIAL)}, tokenizer.get_vocab_size()

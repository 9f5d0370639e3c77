"""A tiny language model that knows a handful of answers by heart, made in under a minute on one core.

Chaos tests need an engine whose answers can be wrong: a random model cannot be, a real one takes minutes to
load on shared cores. This is a two-layer Llama, trained to repeat the answers below; two ranks can share it.
Its tokens are the pieces of these texts, so an answer takes few steps. It is real vLLM that serves it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkloom import fsio

TEMPLATE = (
    "{%- for m in messages -%}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
VOCABULARY = 512  # 256 bytes, the special tokens, the pieces of the answers
FORM = 2  # of the folder's content: one of an older form is made anew
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
VILLAGE = (
    "The village lies where the river slows. Low stone houses face the water, boats rest on the mud, and an "
    "old mill turns beside the bridge. Children fish from the wall while smoke climbs from the bakery."
)
ANSWERS = {
    "What is the capital of France? Answer in one short sentence.": "The capital of France is Paris.",
    "What is the capital of France?": "The capital of France is Paris.",
    "Which planet is the largest?": "Jupiter is the largest planet.",
    "Write one sentence about a river. ☃": "The river bends past the old mill and goes on to the sea.",
    "Describe a village by a river in about eighty words.": VILLAGE,
}


def make(folder: Path, *, steps: int = 400, seed: int = 0) -> Path:
    """Train and write the model into `folder` (whole or not at all); a folder that has it is left alone.

    Raises:
        RuntimeError: after training an answer is still not the one to learn.
    """
    if _made(folder):
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    raw.train_from_iterator([*ANSWERS, *ANSWERS.values()], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|end|>", model_max_length=2048
    )
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    rows = [_row(tokenizer, q, a) for q, a in ANSWERS.items()]
    width = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    ids = torch.tensor([r + [pad] * (width - len(r)) for r, _ in rows])
    labels = torch.tensor([[-100] * p + r[p:] + [-100] * (width - len(r)) for r, p in rows])
    mask = (ids != pad).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step > 40 and float(loss.detach()) < 2e-3:
            break
    model.eval()
    wrong = [q for q, a in ANSWERS.items() if answer(model, tokenizer, q) != a]
    if wrong:
        raise RuntimeError(f"the parrot did not learn: {wrong}")
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {"form": FORM, "answers": ANSWERS, "loss": float(loss.detach()), "steps": step + 1}
    fsio.write_json(folder / "parrot.json", about)
    return folder


def _made(folder: Path) -> bool:
    """Whether the folder holds a whole parrot of this form."""
    try:
        return bool(json.loads((folder / "parrot.json").read_text()).get("form") == FORM)
    except (OSError, ValueError):
        return False


def _row(tokenizer: Any, question: str, reply: str) -> tuple[list[int], int]:
    """Token ids of question and reply, and how many belong to the question."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return start + tokenizer(reply + "<|end|>", add_special_tokens=False)["input_ids"], len(start)


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """The model's greedy answer."""
    import torch

    start, length = _row(tokenizer, question, "")
    ids = torch.tensor([start[:length]])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=300, do_sample=False)
    text: str = tokenizer.decode(out[0, length:], skip_special_tokens=True)
    return text


if __name__ == "__main__":
    import sys

    print(json.dumps({"folder": str(make(Path(sys.argv[1])))}))

"""Long prompts against transformers' pure-torch code: log-probabilities and the selected tokens.

One process: vLLM reads the prompt and decodes; then transformers reads prompt and continuation, once in
float32 and once in bfloat16. The bfloat16 run says how far rounding alone goes; a float32 run whose indexer
selects the newest tokens says how far a wrong selection goes. Prompt and continuation stay below 65,536
tokens: past 2^32 entries of its mask torch's attention no longer follows the mask.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumatrix import tasks

DECODED, JUDGED, CHUNK = 48, 256, 4096


def long_context(row: Mapping[str, Any]) -> dict[str, Any]:
    """See the module."""
    import torch

    length = int(row["task_args"]["length"])
    ids = tasks.prompt(length, 9)
    llm = tasks.make_engine(row)
    start = time.perf_counter()
    out = tasks.ask(llm, [ids], DECODED, logprobs=tasks.TOP)[0]
    seconds = round(time.perf_counter() - start, 2)
    facts = tasks.look(llm)
    decoded = tasks.generation(out)
    read = tasks.ask(llm, [ids], 1, prompt_logprobs=tasks.TOP)[0]
    prefill = [
        {token: entry.logprob for token, entry in step.items()} for step in read.prompt_logprobs[-JUDGED:]
    ]
    buffer = selection(tasks.runner(llm))
    # The last prompt token was in the last chunk; its rows are the chunk's last ones.
    rows = (length - 1) % int(row["engine"]["max_num_batched_tokens"]) + 1
    chosen = None if buffer is None else buffer[max(0, rows - JUDGED) : rows].cpu()
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    everything = torch.tensor([ids + decoded["tokens"]])
    numbers: dict[str, Any] = {"prompt": length, "vllm_s": seconds}
    model = Path(row["model_path"]).parent / "glm-hf"
    exact, exact_sets = reference(model, torch.float32, everything, length)
    low, low_sets = reference(model, torch.bfloat16, everything, length)
    wrong, wrong_sets = reference(model, torch.float32, everything, length, newest=True)
    # Position p predicts token p + 1: the judged prompt tokens, then the decoded ones.
    parts = {"prefill": slice(0, JUDGED), "decode": slice(JUDGED, None)}
    real = {"prefill": ids[-JUDGED:], "decode": decoded["tokens"]}
    vllm = {"prefill": prefill, "decode": decoded["top"]}
    for name, part in parts.items():
        numbers[name] = spread(vllm[name], exact[part])
        numbers[f"transformers_bf16_{name}"] = spread(tops(low[part], real[name]), exact[part])
        numbers[f"newest_only_{name}"] = spread(tops(wrong[part], real[name]), exact[part])
    if chosen is not None and exact_sets is not None:
        count = len(chosen)
        numbers["overlap_prefill"] = overlap(chosen, exact_sets[JUDGED - count + 1 : JUDGED + 1])
        numbers["overlap_transformers_bf16"] = overlap(low_sets[:JUDGED], exact_sets[:JUDGED])
        numbers["overlap_newest_only"] = overlap(wrong_sets[:JUDGED], exact_sets[:JUDGED])
    return {"generations": [decoded], "facts": facts, "numbers": numbers}


def selection(runner: Any) -> Any:
    """The buffer of selected token positions of the model's sparse layers [rows, topk + pool - 1]."""
    if runner is None:
        return None
    for module in runner.model.modules():
        buffer = getattr(module, "topk_indices_buffer", None)
        if buffer is not None:
            return buffer.clone()
    return None


class Whole:
    """Stands for a cache whose states are all there: lets the indexer work on a slice of the queries."""

    def __init__(self, packed: Any, layer: int) -> None:
        self.packed = packed
        self.layers = {layer: self}
        self.keys = packed

    def update_indexer(self, _states: Any, _layer: int) -> Any:
        """All states up to the end of the slice."""
        return self.packed

    def get_seq_length(self) -> int:
        """Tokens up to the end of the slice."""
        return int(self.packed.shape[1])


def in_slices(plain: Any, kept: list[Any], newest: bool) -> Any:
    """The indexer's forward, unchanged, over slices of the queries (its scores would not fit at once)."""
    import torch
    import torch.nn.functional as functional

    def forward(
        self: Any, hidden_states: Any, q_resid: Any, attention_mask: Any, past_key_values: Any = None
    ) -> Any:
        keys = self.k_norm(self.wk(hidden_states))
        gates = functional.linear(hidden_states, self.index_kpool_compress_gate)
        packed = torch.cat([keys, gates, attention_mask.to(keys.dtype)[..., None]], -1)
        parts = []
        for a in range(0, hidden_states.shape[1], CHUNK):
            b = min(a + CHUNK, hidden_states.shape[1])
            cache = Whole(packed[:, :b], self.layer_idx)
            part = plain(self, hidden_states[:, a:b], q_resid[:, a:b], attention_mask[:, a:b], cache)
            if newest:
                ends = torch.arange(a, b, device=part.device)[:, None]
                back = torch.arange(self.index_topk, device=part.device)
                part = (ends - back).clamp(min=-1)[None].to(part.dtype)
            parts.append(part)
        found = torch.cat(parts, 1)
        kept.append(found)
        return found

    return forward


def reference(folder: Path, dtype: Any, ids: Any, length: int, *, newest: bool = False) -> tuple[Any, Any]:
    """transformers' log-probabilities at the judged positions, and the selected tokens there.

    Returns:
        float32 [judged + decoded, vocab] for the predictions of the last judged prompt tokens and of the
        decoded ones; int32 [judged + decoded, selected] of the sparse layer, by query position.
    """
    import torch
    from transformers import Glm5NextForConditionalGeneration
    from transformers.models.glm5_next import modeling_glm5_next as code

    indexer: Any = code.Glm5NextTextIndexer
    plain, kept = indexer.forward, []
    model = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval().cuda()
    first = length - JUDGED - 1
    plain_call = getattr(plain, "__wrapped__", plain)
    indexer.forward = in_slices(plain_call, kept, newest)
    try:
        with torch.no_grad():
            keep = ids.shape[1] - first
            logits = model(input_ids=ids.cuda(), use_cache=False, logits_to_keep=keep).logits[0]
    finally:
        indexer.forward = plain
    logprobs = torch.log_softmax(logits[:-1].float(), -1).cpu()
    sets = kept[-1][0, first:-1].cpu() if kept else None
    del model, logits, kept
    gc.collect()
    torch.cuda.empty_cache()
    return logprobs, sets


def tops(logprobs: Any, tokens: list[int]) -> list[dict[int, float]]:
    """The likeliest tokens of each position, and the real one."""
    found = []
    for line, token in zip(logprobs, tokens, strict=True):
        best = line.topk(tasks.TOP).indices.tolist()
        found.append({t: float(line[t]) for t in {*best, token}})
    return found


def spread(seen: list[Any], exact: Any) -> dict[str, Any]:
    """How far log-probabilities (likeliest tokens and the real one) lie from the float32 reference."""
    import torch

    differences, agree = [], []
    for step, line in zip(seen, exact, strict=True):
        differences += [abs(value - float(line[int(t)])) for t, value in step.items()]
        agree.append(int(max(step, key=lambda t, step=step: step[t])) == int(line.argmax()))
    found = torch.tensor(differences)
    return {
        "values": len(differences),
        "median": round(float(found.median()), 4),
        "p95": round(float(found.quantile(0.95)), 4),
        "max": round(float(found.max()), 3),
        "argmax_agree": round(sum(agree) / len(agree), 4),
    }


def overlap(seen: Any, exact: Any) -> float:
    """Mean share of the reference's selected tokens that were selected too."""
    shares = []
    for a, b in zip(seen.tolist(), exact.tolist(), strict=True):
        mine, theirs = {t for t in a if t >= 0}, {t for t in b if t >= 0}
        shares.append(len(mine & theirs) / max(1, len(theirs)))
    return round(sum(shares) / len(shares), 4)

"""What a row does inside its process: one vLLM engine, one task, one record.

Every task gets the row and gives `{"generations": [...], "facts": {...}, "numbers": {...}}`.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpumatrix import judge

FIRST, LAST = 23, 399  # plain ids of the tiny tokenizer
BASE: dict[str, Any] = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 4,
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 2 << 30,
    "enforce_eager": True,
    "disable_log_stats": False,
    "enable_flashinfer_autotune": False,
    "enable_prefix_caching": True,
}
TOKENS, LONG = 64, 2600
TOP = 5


def prompt(length: int, seed: int) -> list[int]:
    """Random plain tokens."""
    rng = random.Random(seed)
    return [rng.randrange(FIRST, LAST) for _ in range(length)]


def make_engine(row: Mapping[str, Any]) -> Any:
    """The row's `vllm.LLM`, over `BASE`."""
    from vllm import LLM

    settings = {**BASE, **row["engine"]}
    if settings.get("speculative_config", {}).get("method") == "dflash":
        avoid_topk_build()
    return LLM(model=row["model_path"], **settings)


def avoid_topk_build() -> None:
    """torch.topk for DFlash2's candidates: FlashInfer's would be compiled first, for minutes."""
    import vllm.model_executor.layers.logits_processor as module

    if hasattr(module, "_flashinfer_topk"):
        module._flashinfer_topk = lambda: None


def ask(llm: Any, prompts: Sequence[Sequence[int]], tokens: int, **how: Any) -> list[Any]:
    """vLLM's outputs of greedy requests that go on past end-of-text tokens."""
    from vllm import SamplingParams

    params = SamplingParams(**{"max_tokens": tokens, "temperature": 0, "ignore_eos": True, **how})
    return list(llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False))


def generation(output: Any) -> dict[str, Any]:
    """Tokens, their log-probabilities and the likeliest alternatives of one output."""
    answer = output.outputs[0]
    top = [{token: entry.logprob for token, entry in step.items()} for step in answer.logprobs]
    chosen = [step[token] for step, token in zip(top, answer.token_ids, strict=True)]
    return {"tokens": list(answer.token_ids), "logprobs": chosen, "top": top}


def generate(row: Mapping[str, Any]) -> dict[str, Any]:
    """Three short prompts twice, one prompt beyond `index_topk` twice, metrics."""
    llm = make_engine(row)
    prompts = [prompt(40 + 11 * i, i) for i in range(3)]
    first = [generation(o) for o in ask(llm, prompts, TOKENS, logprobs=TOP)]
    again = [generation(o) for o in ask(llm, prompts, TOKENS, logprobs=TOP, skip_reading_prefix_cache=True)]
    numbers: dict[str, Any] = {}
    facts = look(llm)
    facts["repeats"] = [g["tokens"] for g in first] == [g["tokens"] for g in again]
    if llm.llm_engine.vllm_config.model_config.max_model_len > LONG + TOKENS:
        long = prompt(LONG, 7)
        cold, warm = (ask(llm, [long], TOKENS, logprobs=TOP)[0] for _ in range(2))
        numbers["cached_first"], numbers["cached_second"] = cold.num_cached_tokens, warm.num_cached_tokens
        first.append(generation(cold))
        prompts.append(long)
        numbers["warm"] = judge.agreement([first[-1]], [generation(warm)])
    numbers["forced"] = forced(llm, prompts, first)
    if row["task_args"].get("probe") == "no_store":
        once, stored = prompt(LONG, 11), prompt(LONG, 12)
        extra = {"skip_writing_prefix_cache": 1}
        numbers["no_store_cached"] = [
            ask(llm, [once], 4, extra_args=extra)[0].num_cached_tokens for _ in range(2)
        ]
        numbers["stored_cached_second"] = [ask(llm, [stored], 4)[0].num_cached_tokens for _ in range(2)][1]
    numbers["spec"] = speculation(llm)
    start = time.perf_counter()
    ask(llm, [prompt(64, 3)], 128)
    numbers["decode_tokens_per_s"] = round(128 / (time.perf_counter() - start), 1)
    return {"generations": first, "facts": facts, "numbers": numbers}


def forced(llm: Any, prompts: Sequence[Sequence[int]], said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the engine itself thinks of its text when it reads it as a prompt, in one prefill.

    Decoding (speculation, rolled-back states, graphs, small batches) against prefill, at every token, also
    after a flip. `behind` counts tokens that lie more than half a nat behind the likeliest.
    """
    texts = [[*p, *g["tokens"]] for p, g in zip(prompts, said, strict=True)]
    answers = ask(llm, texts, 1, prompt_logprobs=TOP, skip_reading_prefix_cache=True)
    gaps, moved = [], []
    for start, answer, wrote in zip(map(len, prompts), answers, said, strict=True):
        for at, token in enumerate(wrote["tokens"]):
            step = {t: entry.logprob for t, entry in answer.prompt_logprobs[start + at].items()}
            gaps.append(max(step.values()) - step[token])
            moved.append(abs(step[token] - wrote["logprobs"][at]))
    return {
        "tokens": len(gaps),
        "likeliest": round(sum(gap == 0 for gap in gaps) / len(gaps), 4),
        "behind": sum(gap > judge.TIE for gap in gaps),
        "worst_gap": round(max(gaps), 4),
        "median": round(judge.quantile(moved, 0.5), 5),
        "p95": round(judge.quantile(moved, 0.95), 5),
    }


def speculation(llm: Any) -> dict[str, Any]:
    """Drafts, draft tokens, accepted tokens, accepted by position; empty without speculation."""
    found: dict[str, Any] = {}
    names = {
        "num_drafts": "drafts",
        "num_draft_tokens": "draft_tokens",
        "num_accepted_tokens": "accepted",
        "num_accepted_tokens_per_pos": "per_position",
    }
    for metric in llm.get_metrics():
        short = metric.name.partition("spec_decode_")[2]
        if short in names:
            found[names[short]] = getattr(metric, "values", None) or getattr(metric, "value", None)
    if found.get("drafts"):
        found["accepted_per_draft"] = round(found["accepted"] / found["drafts"], 3)
        found["mean_width"] = round(found["draft_tokens"] / found["drafts"], 3)
    return found


def runner(llm: Any) -> Any:
    """The model runner, when the worker lives in this process."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    return None if core is None else core.model_executor.driver_worker.worker.model_runner


def look(llm: Any) -> dict[str, Any]:
    """What is in force in this process, and which kernels the engine chose."""
    import torch

    config = llm.llm_engine.vllm_config
    facts: dict[str, Any] = {
        "kv_dtype": str(config.cache_config.cache_dtype),
        "block": config.cache_config.block_size,
        "gpu_blocks": config.cache_config.num_gpu_blocks,
        "cudagraph": str(config.compilation_config.cudagraph_mode),
        "compilation": str(config.compilation_config.mode),
        **hooks(),
    }
    backends = set()
    for layer in config.compilation_config.static_forward_context.values():
        found = getattr(layer, "attn_backend", None) or (
            layer.get_attn_backend() if hasattr(layer, "get_attn_backend") else None
        )
        if found is not None:
            backends.add(str(getattr(found, "get_name", lambda found=found: found)()))
    facts["attention"] = sorted(backends)
    own = runner(llm)
    if own is not None:
        kernels = [type(kernel).__name__ for m in own.model.modules() for kernel in own_kernels(m)]
        facts["backends"], facts["own_layers"] = sorted(set(kernels)), len(kernels)
    facts["max_gpu_mib"] = (
        round(torch.cuda.max_memory_allocated() / 2**20) if torch.cuda.is_available() else 0
    )
    return facts


def own_kernels(module: Any) -> list[Any]:
    """The plug-in's kernel objects behind a module: one for experts, one per run of a dense layer."""
    method = getattr(module, "quant_method", None)
    runs = [getattr(run, "__self__", None) for run in getattr(method, "runs", [])]
    return [kernel for kernel in (getattr(method, "kernel", None), *runs) if kernel is not None]


def hooks() -> dict[str, Any]:
    """Hooks in force in this process, patches of the installed vLLM, and what they answer."""
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    facts: dict[str, Any] = {"in_force": {}, "patches": []}
    if os.environ.get("VLLM_PLUGINS") == "exl3":
        from sparkloom.vllm.hooks.install import _installed, patched

        facts["in_force"], facts["patches"] = dict(_installed), list(patched())
    facts["spin_window_s"] = shm_broadcast.SpinCondition.__init__.__defaults__[-1]
    if current_platform.is_cuda():
        import torch

        facts["pdl"] = bool(current_platform.is_arch_support_pdl())
        plain = torch.cuda.get_device_capability
        torch.cuda.get_device_capability = lambda *_: (12, 1)
        try:
            facts["pdl_on_sm12x"] = bool(type(current_platform).is_arch_support_pdl())
        finally:
            torch.cuda.get_device_capability = plain
    return facts


def memory(row: Mapping[str, Any]) -> dict[str, Any]:
    """Peak of allocated memory while a long prompt is read."""
    import torch

    llm = make_engine(row)
    length = int(row["task_args"].get("length", 65536))
    ask(llm, [prompt(3000, 1)], 2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = ask(llm, [prompt(length, 5)], 16, logprobs=TOP)[0]
    peak = torch.cuda.max_memory_allocated()
    numbers = {
        "prompt": length,
        "before_mib": round(before / 2**20, 1),
        "peak_mib": round(peak / 2**20, 1),
        "rise_mib": round((peak - before) / 2**20, 1),
    }
    return {"generations": [generation(out)], "facts": look(llm), "numbers": numbers}


def retention(row: Mapping[str, Any]) -> dict[str, Any]:
    """Cached tokens of a prompt of a named group, before and after a burst that fills the pool twice."""
    llm = make_engine(row)
    facts = look(llm)
    mine, extra = prompt(LONG, 30), {"keep_prefix": "mine"}
    ask(llm, [mine], 4, extra_args=extra)
    before = ask(llm, [mine], 4, extra_args=extra)[0].num_cached_tokens
    # Every prompt takes at least one block of each of its tokens' rows.
    burst = 2 * (int(facts["gpu_blocks"]) // (LONG // int(facts["block"]))) + 4
    for n in range(burst):
        ask(llm, [prompt(LONG, 100 + n)], 2)
    after = ask(llm, [mine], 4, extra_args=extra)[0].num_cached_tokens
    numbers = {"burst": burst, "cached_before_burst": before, "cached_after_burst": after}
    return {"facts": facts, "numbers": numbers}


def stops(row: Mapping[str, Any]) -> dict[str, Any]:
    """A stop string that the model writes anyway, in its reasoning and in its answer."""
    llm = make_engine(row)
    ids = llm.get_tokenizer().get_vocab()
    facts = look(llm)
    for name, marker in (("reasoning", "<think>"), ("answer", "</think>")):
        start = [*prompt(30, 4), ids[marker]]
        free = ask(llm, [start], 48)[0].outputs[0]
        text = free.text
        wanted = text[len(text) // 2 : len(text) // 2 + 3]
        held = ask(llm, [start], 48, stop=[wanted])[0].outputs[0]
        facts[f"stopped_in_{name}"] = held.finish_reason == "stop"
        facts[f"{name}_tokens"] = [len(held.token_ids), len(free.token_ids)]
    return {"facts": facts, "numbers": {}}


def spin(row: Mapping[str, Any]) -> dict[str, Any]:
    """CPU time of all processes of the engine in the 0.8 s after an answer."""
    import psutil

    llm = make_engine(row)
    prompts = [prompt(40 + 11 * i, i) for i in range(3)]
    # One by one: how requests fall into steps depends on timing, and rounding on the steps.
    first = [generation(ask(llm, [p], TOKENS, logprobs=TOP)[0]) for p in prompts]
    me = psutil.Process()

    def used() -> float:
        total = 0.0
        for process in me.children(recursive=True):
            times = process.cpu_times()
            total += times.user + times.system
        return total

    spent = []
    for _ in range(5):
        ask(llm, prompts[:1], 4)
        before = used()
        time.sleep(0.8)
        spent.append(used() - before)
    numbers = {"idle_cpu_s": round(sorted(spent)[2], 3), "idle_cpu_all": [round(s, 3) for s in spent]}
    return {"generations": first, "facts": hooks(), "numbers": numbers}


def fair(row: Mapping[str, Any]) -> dict[str, Any]:
    """Two running answers, then a newcomer with a 32k prompt: the steps while it is read."""
    from vllm import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    length = int(row["task_args"].get("length", 32768))
    log: list[tuple[float, dict[str, int]]] = []
    plain = Scheduler.schedule

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = plain(self, *args, **kwargs)
        log.append((time.perf_counter(), dict(output.num_scheduled_tokens)))
        return output

    Scheduler.schedule = schedule
    llm = make_engine(row)
    ask(llm, [prompt(length, 1)], 4)  # compile and allocate
    engine = llm.llm_engine

    def add(name: str, tokens: Sequence[int], limit: int) -> None:
        how = SamplingParams(max_tokens=limit, temperature=0, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": list(tokens)}, how)

    counts = {"a": 0, "b": 0, "new": 0}
    times: dict[str, list[float]] = {name: [] for name in counts}

    def step() -> None:
        for output in engine.step():
            name, got = output.request_id.split("-")[0], len(output.outputs[0].token_ids)
            if got > counts[name]:
                counts[name] = got
                times[name].append(time.perf_counter())

    add("a", prompt(64, 2), 3000)
    add("b", prompt(64, 3), 3000)
    while min(counts["a"], counts["b"]) < 60:
        step()
    before = len(times["a"])
    came, mark = time.perf_counter(), len(log)
    add("new", prompt(length, 6), 8)
    while counts["new"] < 8 and engine.has_unfinished_requests():
        step()
    first = times["new"][0]
    during = [t for t in times["a"][before - 1 :] if t <= first]
    gaps = [round((b - a) * 1000, 2) for a, b in itertools.pairwise(during)]
    steps = []
    for at, scheduled in log[mark:]:
        prefill = sum(n for n in scheduled.values() if n > 1)
        steps.append([round((at - came) * 1000, 1), prefill, len(scheduled)])
        if at > first:
            break
    chunks = [s[1] for s in steps if s[1]]
    numbers = {
        "largest_prefill": max(chunks),
        "prefill_steps": len(chunks),
        "steps_while_reading": len(steps),
        "longest_gap_ms": max(gaps, default=None),
        "median_gap_ms": sorted(gaps)[len(gaps) // 2] if gaps else None,
        "gaps_over_25_ms": sum(g > 25 for g in gaps),
        "first_token_of_newcomer_s": round(first - came, 3),
        "newcomer_tokens": counts["new"],
        "answers_tokens_meanwhile": len(during) - 1,
        "steps": steps[:60],
    }
    return {"facts": look(llm), "numbers": numbers}

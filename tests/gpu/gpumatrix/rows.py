"""The rows of the matrix: small data records.

A row is one process: a model, engine arguments, the options of `SPARKLOOM_PATCHES`, a task, and what is
judged. `select` picks rows by name or group; rows that a check refers to come along.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]},
}
WIDE_GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]},
}
SM12X_ROWS = {"kv_cache_dtype": "fp8_ds_mla", "attention_config": {"backend": "FLASHMLA_SPARSE"}}
"""The 656-byte cache row that sm_12x uses; here with the backend that takes it on other GPUs."""
OPEN = ["/health", "/load", "/metrics", "/ping", "/version"]
"""Routes that may answer without the key."""
OFF = {
    "pdl_gate": False,
    "key_on_all_routes": False,
    "stop_strings_after_reasoning": False,
    "per_request_no_store": False,
    "free_indexer_logits": False,
    "fair_prefill": "stock",
}


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        name: unique, also the name of its log.
        subject: what is judged, in one sentence.
        model: folder of `models.py`.
        task: function of `tasks.py` (or `serve`).
        group: for selection.
        engine: arguments of `vllm.LLM` over the defaults of `tasks.BASE`.
        options: value of `SPARKLOOM_PATCHES`; None leaves the variable unset.
        plugin: whether the Sparkloom plug-in is loaded.
        backend: value of `SPARKLOOM_EXL3_BACKEND`.
        patched: whether the row needs a vLLM with `patches/vllm` applied.
        task_args: arguments of the task.
        env: more environment variables.
        checks: see `judge.py`.
        limit: seconds until the row is ended.
    """

    name: str
    subject: str
    model: str = "glm-dense"
    task: str = "generate"
    group: str = "base"
    engine: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] | None = None
    plugin: bool = True
    backend: str = "auto"
    patched: bool = False
    task_args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    checks: Sequence[Mapping[str, Any]] = ()
    limit: int = 280

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON."""
        return asdict(self)


def value(path: str, op: str, to: Any) -> dict[str, Any]:
    """A check of one recorded value."""
    return {"rule": "value", "path": path, "op": op, "to": to}


def compare(path: str, op: str, of: str, **more: Any) -> dict[str, Any]:
    """A check of one number against another row's."""
    return {"rule": "compare", "path": path, "op": op, "of": of, **more}


def own(path: str, op: str, than: str, **more: Any) -> dict[str, Any]:
    """A check of one number against another of the same row."""
    return {"rule": "own", "path": path, "op": op, "than": than, **more}


def same(rule: str, of: str, **more: Any) -> dict[str, Any]:
    """A check of the generations against another row's."""
    return {"rule": rule, "of": of, **more}


REPEATS = value("facts.repeats", "==", True)
CACHED = value("numbers.cached_second", ">", 2000)
WARM = value("numbers.warm.flips", "<=", 1)
SHORT: dict[str, Any] = {"prompts": (0, 3)}
LONG: dict[str, Any] = {"prompts": (3, 4), "flips": 1}
"""Beyond `index_topk` vLLM itself does not repeat to the bit: row `stock-again`."""
FORCED = compare("numbers.forced.behind", "<=", "stock", plus=4)
"""Of 256 tokens written, few lie behind the likeliest when the engine reads its own text in one go."""
DRAFTED = value("numbers.spec.accepted", ">", 30)


def mtp(tokens: int) -> dict[str, Any]:
    """Speculation with the checkpoint's MTP layer."""
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": tokens}}


def dflash(source: str, **more: Any) -> dict[str, Any]:
    """Speculation with a DFlash2 draft of `drafts.py`, seven tokens a block."""
    return {
        "speculative_config": {
            "method": "dflash",
            "model": f"{{models}}/draft-{source}",
            "num_speculative_tokens": 7,
            "kv_cache_dtype": "auto",
            **more,
        }
    }


def installed(option: str, setting: Any) -> dict[str, Any]:
    """The option is in force in the engine's process."""
    return value(f"facts.in_force.{option}", "==", setting)


BASE_ROWS = [
    Row("stock", "vLLM as it is: the reference", plugin=False, checks=[REPEATS, CACHED, WARM]),
    Row(
        "stock-again",
        "vLLM as it is, once more: how far it repeats itself",
        plugin=False,
        checks=[same("identical", "stock", **SHORT), same("near", "stock", **LONG)],
    ),
    Row(
        "off",
        "the plug-in with no option set: equals stock",
        checks=[
            same("identical", "stock", **SHORT),
            same("near", "stock", **LONG),
            value("facts.in_force", "==", {}),
        ],
    ),
    Row(
        "off-named",
        "the plug-in with every option named and off: equals stock",
        options=OFF,
        checks=[
            same("identical", "stock", **SHORT),
            same("near", "stock", **LONG),
            value("facts.in_force", "==", {}),
        ],
    ),
    Row(
        "off-patched",
        "the patched vLLM with every option off: equals stock",
        options=OFF,
        patched=True,
        checks=[
            same("identical", "stock", **SHORT),
            same("near", "stock", **LONG),
            value("facts.patches", "!=", []),
        ],
    ),
    Row("stock-graphs", "vLLM as it is, CUDA graphs", plugin=False, engine=GRAPHS, checks=[REPEATS, CACHED]),
    Row(
        "off-graphs",
        "the plug-in with no option set, CUDA graphs: equals stock",
        engine=GRAPHS,
        checks=[same("identical", "stock-graphs", **SHORT), same("near", "stock-graphs", **LONG)],
    ),
    Row("stock-qwen", "vLLM as it is, Qwen3-MoE", model="qwen-dense", plugin=False, checks=[REPEATS]),
    Row(
        "off-qwen",
        "the plug-in with no option set, Qwen3-MoE: equals stock",
        model="qwen-dense",
        checks=[same("identical", "stock-qwen")],
    ),
]

FAIR_ENGINE = {
    **GRAPHS,
    "max_model_len": 40960,
    "max_num_batched_tokens": 16384,
    "enable_prefix_caching": False,
}
HOOK_ROWS = [
    Row(
        "pdl-gate",
        "pdl_gate: off on 12.x only; this GPU's answer stays vLLM's",
        group="hooks",
        options={"pdl_gate": True},
        checks=[
            installed("pdl_gate", True),
            compare("facts.pdl", "==", "stock"),
            value("facts.pdl_on_sm12x", "==", False),
            same("identical", "stock", **SHORT),
            same("near", "stock", **LONG),
        ],
    ),
    Row(
        "no-store",
        "per_request_no_store: such a prompt is found by nobody, others are",
        group="hooks",
        options={"per_request_no_store": True},
        task_args={"probe": "no_store"},
        checks=[
            installed("per_request_no_store", True),
            value("numbers.no_store_cached", "==", [0, 0]),
            value("numbers.stored_cached_second", ">", 2000),
            same("identical", "stock", **SHORT),
            same("near", "stock", **LONG),
        ],
    ),
    Row(
        "stops-stock",
        "stop strings of vLLM as it is: end a request inside its reasoning",
        task="stops",
        group="hooks",
        plugin=False,
        checks=[
            value("facts.stopped_in_reasoning", "==", True),
            value("facts.stopped_in_answer", "==", True),
        ],
    ),
    Row(
        "stops",
        "stop_strings_after_reasoning: asleep in the reasoning, awake in the answer",
        task="stops",
        group="hooks",
        options={"stop_strings_after_reasoning": True},
        checks=[
            installed("stop_strings_after_reasoning", True),
            value("facts.stopped_in_reasoning", "==", False),
            value("facts.stopped_in_answer", "==", True),
        ],
    ),
    Row(
        "spin-stock",
        "the message reader of vLLM as it is: CPU time in the second after an answer",
        task="spin",
        group="hooks",
        plugin=False,
        engine={"distributed_executor_backend": "mp"},
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        checks=[value("facts.spin_window_s", "==", 1)],
    ),
    Row(
        "spin",
        "spin_window_ms = 16: the reader sleeps sooner",
        task="spin",
        group="hooks",
        options={"spin_window_ms": 16},
        engine={"distributed_executor_backend": "mp"},
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        checks=[
            value("facts.spin_window_s", "==", 0.016),
            compare("numbers.idle_cpu_s", "<", "spin-stock"),
            same("tokens", "spin-stock"),
        ],
    ),
    Row(
        "fair-stock",
        "a newcomer's 32k prompt beside two running answers, vLLM as it is",
        task="fair",
        group="hooks",
        plugin=False,
        engine=FAIR_ENGINE,
        checks=[value("numbers.largest_prefill", ">", 8192)],
    ),
    Row(
        "fair",
        "fair_prefill with a gap of 50 ms and a share of 0.5: smaller chunks, shorter longest gap",
        task="fair",
        group="hooks",
        options={"fair_prefill": "fair", "fair_prefill_share": 0.5, "fair_prefill_max_gap_ms": 50},
        engine=FAIR_ENGINE,
        checks=[
            installed("fair_prefill", "fair"),
            compare("numbers.largest_prefill", "<", "fair-stock"),
            compare("numbers.longest_gap_ms", "<", "fair-stock"),
            value("numbers.newcomer_tokens", "==", 8),
        ],
    ),
    Row(
        "logits-off",
        "peak memory of a 64k prompt, free_indexer_logits off (patched vLLM)",
        task="memory",
        group="hooks",
        options={"free_indexer_logits": False},
        patched=True,
        engine={"max_model_len": 70000, "max_num_batched_tokens": 16384, "enable_prefix_caching": False},
    ),
    Row(
        "logits-on",
        "free_indexer_logits: tokens equal, peak lower",
        task="memory",
        group="hooks",
        options={"free_indexer_logits": True},
        patched=True,
        engine={"max_model_len": 70000, "max_num_batched_tokens": 16384, "enable_prefix_caching": False},
        checks=[
            installed("free_indexer_logits", True),
            same("near", "logits-off", flips=1),
            compare("numbers.peak_mib", "<", "logits-off", plus=-100),
        ],
    ),
    Row(
        "serve-stock",
        "the HTTP server of vLLM as it is: routes that answer without the key",
        task="serve",
        group="hooks",
        plugin=False,
        engine={**GRAPHS, "max_model_len": 3000},
        checks=[value("numbers.open_posts", "in", "/invocations"), value("numbers.exit", "==", 0)],
    ),
    Row(
        "serve",
        "EXL3 experts over HTTP, key_on_all_routes, default_new_tokens = 24, graphs",
        model="glm",
        task="serve",
        group="hooks",
        backend="cuda",
        options={"key_on_all_routes": True, "default_new_tokens": 24, "per_request_no_store": True},
        engine=GRAPHS,
        checks=[
            value("numbers.open_posts", "within", OPEN),
            value("numbers.open_gets", "within", OPEN),
            value("numbers.routes_asked", ">", 15),
            value("numbers.no_store_cached_http", "==", [0, 0]),
            value("numbers.tokens_without_limit", "==", 24),
            value("numbers.tokens_with_limit_40", "==", 40),
            value("numbers.chat_status", "==", 200),
            value("numbers.exit", "==", 0),
            same("near", "exl3-graphs", flips=1),
        ],
    ),
]

SPECULATION_AND_DENSE_ROWS = [
    Row(
        "draft-block",
        "draft_kv_block_tokens = half the manager block: more pool blocks, same tokens, same drafts accepted",
        group="hooks",
        options={"draft_kv_block_tokens": 192},
        engine={**WIDE_GRAPHS, **dflash("anchor")},
        checks=[
            installed("draft_kv_block_tokens", 192),
            REPEATS,
            CACHED,
            WARM,
            compare("facts.gpu_blocks", ">", "dflash-anchor", times=1.2),
            compare("numbers.spec.accepted_per_draft", ">", "dflash-anchor", times=0.9),
            same("near", "dflash-anchor", flips=1),
        ],
    ),
    Row(
        "verify-width",
        "adaptive_verify_width: fewer verified rows than seven a draft, same tokens",
        group="hooks",
        options={"adaptive_verify_width": True},
        engine={**WIDE_GRAPHS, **dflash("anchor")},
        checks=[
            installed("adaptive_verify_width", True),
            DRAFTED,
            FORCED,
            value("numbers.spec.mean_width", "<", 6.5),
            same("near", "dflash-anchor", flips=1),
            same("near", "stock-graphs", flips=1),
        ],
    ),
    Row(
        "verify-width-miss",
        "adaptive_verify_width with a draft that misses more often: a smaller width",
        group="hooks",
        options={"adaptive_verify_width": True},
        engine={**WIDE_GRAPHS, **dflash("context")},
        checks=[
            installed("adaptive_verify_width", True),
            DRAFTED,
            FORCED,
            compare("numbers.spec.mean_width", "<", "verify-width"),
            same("near", "stock-graphs", flips=1),
        ],
    ),
    Row(
        "keep-stock",
        "a prompt after a burst of others, vLLM as it is: evicted",
        task="retention",
        group="hooks",
        plugin=False,
        engine={"kv_cache_memory_bytes": 96 << 20},
        checks=[
            value("numbers.cached_before_burst", ">", 2000),
            value("numbers.cached_after_burst", "==", 0),
        ],
    ),
    Row(
        "keep",
        "keep_prefix_share: the prompt of a named group outlives the burst",
        task="retention",
        group="hooks",
        options={"keep_prefix_share": 0.5},
        engine={"kv_cache_memory_bytes": 96 << 20},
        checks=[
            installed("keep_prefix_share", 0.5),
            value("numbers.cached_before_burst", ">", 2000),
            value("numbers.cached_after_burst", ">", 2000),
        ],
    ),
    Row(
        "dense-decoded",
        "a checkpoint whose dense projections were EXL3, decoded: the reference of dense-exl3",
        model="glm-small-dense",
        group="hooks",
        plugin=False,
        checks=[REPEATS],
    ),
    Row(
        "dense-exl3",
        "dense_quantization: EXL3 in KDA, MLA, MLP and shared expert projections, own kernels",
        model="glm-small",
        group="hooks",
        backend="cuda",
        options={"dense_quantization": True},
        checks=[
            installed("dense_quantization", True),
            REPEATS,
            CACHED,
            WARM,
            FORCED,
            value("facts.backends", "==", ["CudaExperts", "CudaLinear"]),
            value("facts.own_layers", ">=", 20),
            same("near", "dense-decoded", flips=2, median=0.06),
        ],
    ),
    Row(
        "dense-exl3-mtp",
        "the same with three MTP drafts, fp8_ds_mla cache rows and CUDA graphs",
        model="glm-small",
        group="hooks",
        backend="cuda",
        options={"dense_quantization": True},
        engine={**WIDE_GRAPHS, **SM12X_ROWS, **mtp(3)},
        checks=[
            installed("dense_quantization", True),
            REPEATS,
            FORCED,
            DRAFTED,
            same("near", "dense-exl3", flips=1),
        ],
    ),
    Row(
        "fp8-decoded",
        "a checkpoint whose dense projections were FP8, decoded: the reference of dense-fp8",
        model="glm-fp8-dense",
        group="hooks",
        plugin=False,
        checks=[REPEATS],
    ),
    Row(
        "dense-fp8",
        "dense_quantization: weight-only FP8 in the dense projections and lm_head, CUDA graphs",
        model="glm-fp8",
        group="hooks",
        backend="cuda",
        options={"dense_quantization": True},
        engine=GRAPHS,
        checks=[
            installed("dense_quantization", True),
            REPEATS,
            CACHED,
            WARM,
            FORCED,
            same("near", "fp8-decoded", flips=2, median=0.06),
        ],
    ),
]

EXL3_ROWS = [
    Row(
        "exl3-reference",
        "EXL3 experts, reference back end (decoded at load)",
        model="glm",
        group="exl3",
        backend="reference",
        env={"SPARKLOOM_EXL3_EXPAND": "1"},
        checks=[REPEATS, value("facts.backends", "==", ["ReferenceExperts"])],
    ),
    Row(
        "exl3-cuda",
        "EXL3 experts, own CUDA kernels, against the reference back end",
        model="glm",
        group="exl3",
        backend="cuda",
        checks=[
            REPEATS,
            CACHED,
            value("facts.backends", "==", ["CudaExperts"]),
            same("near", "exl3-reference", flips=1),
        ],
    ),
    Row(
        "exl3-graphs",
        "EXL3 experts, own CUDA kernels, CUDA graphs",
        model="glm",
        group="exl3",
        backend="cuda",
        engine=GRAPHS,
        checks=[
            REPEATS,
            CACHED,
            WARM,
            FORCED,
            same("near", "exl3-cuda", flips=1),
            same("near", "exl3-reference", flips=1),
        ],
    ),
    Row(
        "exl3-beside-dense",
        "the same weights decoded to bfloat16, no EXL3: how far vLLM's own rounding goes",
        group="exl3",
        checks=[same("near", "exl3-reference", flips=1), same("near", "exl3-cuda", flips=1)],
    ),
    Row(
        "exl3-rows",
        "EXL3 experts, own CUDA kernels, fp8_ds_mla cache rows, CUDA graphs",
        model="glm",
        group="exl3",
        backend="cuda",
        engine={**GRAPHS, **SM12X_ROWS},
        checks=[REPEATS, CACHED, WARM, FORCED, same("near", "exl3-graphs", flips=1)],
    ),
    Row(
        "exl3-mtp",
        "EXL3 experts in trunk and MTP layer, three drafts, CUDA graphs: accepted, same tokens",
        model="glm",
        group="exl3",
        backend="cuda",
        engine={**WIDE_GRAPHS, **mtp(3)},
        checks=[REPEATS, CACHED, WARM, FORCED, DRAFTED, same("near", "exl3-graphs", flips=1)],
    ),
    Row(
        "exl3-mtp-rows",
        "the same with fp8_ds_mla cache rows",
        model="glm",
        group="exl3",
        backend="cuda",
        engine={**WIDE_GRAPHS, **SM12X_ROWS, **mtp(3)},
        checks=[REPEATS, CACHED, WARM, FORCED, DRAFTED, same("near", "exl3-rows", flips=1)],
    ),
    Row(
        "mtp",
        "three drafts of the MTP layer, no EXL3, CUDA graphs",
        group="exl3",
        engine={**WIDE_GRAPHS, **mtp(3)},
        checks=[REPEATS, CACHED, WARM, FORCED, DRAFTED, same("near", "stock-graphs", flips=1)],
    ),
    Row(
        "qwen-reference",
        "Qwen3-MoE, EXL3 experts, reference back end",
        model="qwen",
        group="exl3",
        backend="reference",
        env={"SPARKLOOM_EXL3_EXPAND": "1"},
        checks=[REPEATS, same("near", "stock-qwen", flips=1)],
    ),
    Row(
        "qwen-cuda",
        "Qwen3-MoE, EXL3 experts, own CUDA kernels",
        model="qwen",
        group="exl3",
        backend="cuda",
        checks=[
            REPEATS,
            value("facts.backends", "==", ["CudaExperts"]),
            same("near", "qwen-reference", flips=1),
            same("near", "stock-qwen", flips=1),
        ],
    ),
    Row(
        "qwen-graphs",
        "Qwen3-MoE, EXL3 experts, own CUDA kernels, torch.compile and CUDA graphs",
        model="qwen",
        group="exl3",
        backend="cuda",
        engine=GRAPHS,
        checks=[REPEATS, same("near", "qwen-cuda", flips=1)],
    ),
    Row(
        "qwen-packed-dense",
        "Qwen3-MoE, experts and projections decoded to bfloat16, no EXL3",
        model="qwen-packed-dense",
        group="exl3",
        plugin=False,
        checks=[REPEATS],
    ),
    Row(
        "qwen-packed-reference",
        "Qwen3-MoE, EXL3 experts and dense layers, reference back end",
        model="qwen-packed",
        group="exl3",
        backend="reference",
        env={"SPARKLOOM_EXL3_EXPAND": "1"},
        checks=[REPEATS, same("near", "qwen-packed-dense", flips=1)],
    ),
    Row(
        "qwen-packed-cuda",
        "Qwen3-MoE, EXL3 experts and dense layers, own CUDA kernels",
        model="qwen-packed",
        group="exl3",
        backend="cuda",
        checks=[
            REPEATS,
            value("facts.backends", "==", ["CudaExperts", "CudaLinear"]),
            same("near", "qwen-packed-reference", flips=1),
        ],
    ),
    Row(
        "qwen-packed-graphs",
        "the same with torch.compile and CUDA graphs",
        model="qwen-packed",
        group="exl3",
        backend="cuda",
        engine=GRAPHS,
        checks=[REPEATS, same("near", "qwen-packed-cuda", flips=1)],
    ),
]

LONG_ENGINE = {"max_num_batched_tokens": 8192, "enable_prefix_caching": False}


def judged_long() -> list[dict[str, Any]]:
    """As near to float32 as bfloat16 is, nearer than a wrong selection, and the same tokens selected."""
    found = []
    for part in ("prefill", "decode"):
        mine, bf16 = f"numbers.{part}.median", f"numbers.transformers_bf16_{part}.median"
        found.append(own(mine, "<", bf16, times=1.5))
        found.append(own(mine, "<", f"numbers.newest_only_{part}.median", times=0.8))
    selected = own("numbers.overlap_prefill", ">", "numbers.overlap_transformers_bf16", plus=-0.05)
    return [*found, selected, own("numbers.overlap_prefill", ">", "numbers.overlap_newest_only", plus=0.3)]


LONG_ROWS = [
    Row(
        "long-32k",
        "a 32k prompt and 48 decoded tokens against transformers; 2,048 tokens selected",
        task="long_context",
        group="long",
        plugin=False,
        engine={**LONG_ENGINE, "max_model_len": 33500},
        task_args={"length": 32768},
        checks=judged_long(),
    ),
    Row(
        "long-60k",
        "the same with a prompt of 61,440 tokens",
        task="long_context",
        group="long",
        plugin=False,
        engine={**LONG_ENGINE, "max_model_len": 62000},
        task_args={"length": 61440},
        checks=judged_long(),
    ),
    Row(
        "long-32k-rows",
        "a 32k prompt, fp8_ds_mla cache rows and EXL3 experts on own kernels",
        model="glm",
        task="long_context",
        group="long",
        backend="cuda",
        engine={**LONG_ENGINE, **SM12X_ROWS, "max_model_len": 33500},
        task_args={"length": 32768},
        checks=judged_long(),
    ),
]

EVERY_POSITION = value("numbers.spec.per_position", "each>", 0)
DFLASH_ROWS = [
    Row(
        f"dflash-{source}",
        f"DFlash2, seven drafts, the ring found by {how}; graphs",
        group="dflash",
        engine={**WIDE_GRAPHS, **dflash(source)},
        checks=[
            REPEATS,
            CACHED,
            WARM,
            FORCED,
            DRAFTED,
            EVERY_POSITION,
            same("near", "stock-graphs", flips=1),
        ],
    )
    for source, how in (
        ("anchor", "attention inside the block"),
        ("conv", "the grouped convolutions"),
        ("context", "the context rows made of the target's hidden states"),
    )
]
DFLASH_ROWS += [
    Row(
        "dflash-eager",
        "DFlash2 with the context draft, eager",
        group="dflash",
        engine=dflash("context"),
        checks=[REPEATS, CACHED, WARM, FORCED, DRAFTED, EVERY_POSITION, same("near", "stock")],
    ),
    Row(
        "dflash-exl3",
        "DFlash2 on EXL3 experts (own kernels), fp8_ds_mla cache rows, graphs",
        model="glm",
        group="dflash",
        backend="cuda",
        engine={**WIDE_GRAPHS, **SM12X_ROWS, **dflash("context", attention_backend="FLASH_ATTN")},
        checks=[REPEATS, CACHED, WARM, FORCED, DRAFTED, EVERY_POSITION, same("near", "exl3-rows", flips=1)],
    ),
]

ROWS = [*LONG_ROWS, *BASE_ROWS, *EXL3_ROWS, *DFLASH_ROWS, *SPECULATION_AND_DENSE_ROWS, *HOOK_ROWS]
"""All rows, in the order in which they are started: the longest first."""


def referred(row: Row) -> set[str]:
    """Rows that a row's checks compare with."""
    return {str(check["of"]) for check in row.checks if "of" in check}


def select(patterns: Iterable[str], rows: Sequence[Row] = ROWS) -> list[Row]:
    """Rows whose name or group matches a pattern, with those that they are compared with, in table order.

    Raises:
        ValueError: a pattern matches nothing.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        hits = {
            row.name
            for row in rows
            if fnmatch.fnmatch(row.name, pattern) or fnmatch.fnmatch(row.group, pattern)
        }
        if not hits:
            groups = sorted({row.group for row in rows})
            raise ValueError(f"no row or group matches {pattern!r}; groups: {', '.join(groups)}")
        chosen |= hits
    by_name = {row.name: row for row in rows}
    todo = list(chosen)
    while todo:
        for name in referred(by_name[todo.pop()]) - chosen:
            chosen.add(name)
            todo.append(name)
    return [row for row in rows if row.name in chosen]

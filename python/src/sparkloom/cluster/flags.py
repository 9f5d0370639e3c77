"""vLLM 0.33 flags from a cluster file."""

from __future__ import annotations

import json
from typing import Any

from sparkloom.cluster.base import GIB
from sparkloom.cluster.model import DrafterKind, Geometry
from sparkloom.cluster.operation import Platform
from sparkloom.cluster.serving import Loader
from sparkloom.cluster.settings import Settings
from sparkloom.cluster.types import Cluster


def compact(value: Any) -> str:
    """JSON without spaces, keys in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def switch(name: str, on: bool) -> str:
    """`--name` or `--no-name`."""
    return f"--{name}" if on else f"--no-{name}"


def shared_flags(cluster: Cluster, final: Settings) -> list[str]:
    """Everything that does not depend on the rank."""
    return [
        *_model(cluster),
        *_limits(cluster, final),
        *_cache(cluster, final),
        *_graphs(final),
        *_drafter(cluster, final),
        *_vision(cluster, final),
        *_kernels(cluster),
        *_parsers(cluster, final),
        *_service(cluster),
    ]


def engine_flags(cluster: Cluster, rank: int, generation: int) -> list[str]:
    """Ranks, rendezvous, and where the API listens."""
    flags = ["--tensor-parallel-size", str(cluster.world)]
    if cluster.world > 1:
        port = cluster.rendezvous.master_port + generation % cluster.rendezvous.generation_ports
        seconds = str(int(cluster.deadlines.collective_seconds) or 1)
        flags += ["--distributed-executor-backend", "mp"]
        flags += ["--distributed-timeout-seconds", seconds, "--cpu-distributed-timeout-seconds", seconds]
        flags += ["--nnodes", str(cluster.world), "--node-rank", str(rank)]
        flags += ["--master-addr", cluster.head.fabric.addresses[0], "--master-port", str(port)]
    if rank:
        return [*flags, "--headless"]
    return [*flags, "--host", cluster.api.host, "--port", str(cluster.api.port)]


def _model(cluster: Cluster) -> list[str]:
    model, engine = cluster.model, cluster.engine
    flags = ["--served-model-name", model.served_name]
    if model.quantization != "none":
        flags += ["--quantization", model.quantization]
    if engine.dtype != "auto":
        flags += ["--dtype", engine.dtype]
    if model.chat_template is not None:
        flags += ["--chat-template", model.chat_template]
    loader = cluster.serving.loader
    if loader is Loader.instanttensor:
        return [*flags, "--load-format", "instanttensor"]
    strategy = "eager" if loader is Loader.eager else "lazy"
    return [*flags, "--load-format", "safetensors", "--safetensors-load-strategy", strategy]


def _limits(cluster: Cluster, final: Settings) -> list[str]:
    flags = [
        *("--max-model-len", str(final.context_tokens)),
        *("--max-num-seqs", str(final.max_sequences)),
        *("--max-num-batched-tokens", str(final.max_batched_tokens)),
        *("--max-num-queued-reqs", str(final.max_queued_requests)),
        switch("enable-chunked-prefill", cluster.serving.chunked_prefill),
    ]
    if final.long_prefill_tokens:
        flags += ["--long-prefill-token-threshold", str(final.long_prefill_tokens)]
    return flags


def _cache(cluster: Cluster, final: Settings) -> list[str]:
    serving = cluster.serving
    flags: list[str] = []
    if cluster.engine.platform is Platform.cuda:
        flags += ["--kv-cache-dtype", serving.kv_cache_dtype]
        flags += ["--gpu-memory-utilization", f"{cluster.memory.start_check_fraction:g}"]
    elif serving.kv_cache_dtype not in ("auto", "fp8"):
        flags += ["--kv-cache-dtype", serving.kv_cache_dtype]
    if final.kv_cache_bytes is not None:
        flags += ["--kv-cache-memory-bytes", str(final.kv_cache_bytes)]
    flags.append(switch("enable-prefix-caching", final.prefix_caching))
    if final.prefix_caching:
        flags += ["--prefix-cache-retention-interval", str(final.prefix_cache_retention_tokens)]
    return flags


def _graphs(final: Settings) -> list[str]:
    if not final.cuda_graphs:
        return ["--enforce-eager"]
    return ["--cudagraph-capture-sizes", *map(str, final.cuda_graph_sizes)]


def _drafter(cluster: Cluster, final: Settings) -> list[str]:
    drafter = cluster.drafter
    if final.drafter is DrafterKind.none:
        return []
    config: dict[str, Any]
    if final.drafter is DrafterKind.mtp:
        config = {"method": "mtp", "num_speculative_tokens": final.draft_tokens}
        return ["--speculative-config", compact(config)]
    config = {
        "method": "dflash",
        "model": drafter.path,
        "num_speculative_tokens": final.draft_tokens,
        "kv_cache_dtype": drafter.kv_cache_dtype,
        "draft_sample_method": "probabilistic" if drafter.probabilistic else "greedy",
    }
    if drafter.attention_backend is not None:
        config["attention_backend"] = drafter.attention_backend
    return ["--speculative-config", compact(config)]


def _vision(cluster: Cluster, final: Settings) -> list[str]:
    if cluster.model.geometry is not Geometry.glm_flash:
        return []
    if not final.vision:
        return ["--language-model-only"]
    vision = cluster.vision
    flags = [
        *("--limit-mm-per-prompt", compact({"image": final.max_images, "video": final.max_videos})),
        *("--mm-processor-kwargs", compact({"max_image_tokens": final.max_image_tokens})),
        *("--mm-processor-cache-gb", f"{final.processor_cache_bytes / GIB:g}"),
        # The dummy pass would need the memory that the plan reserves for real images.
        "--skip-mm-profiling",
    ]
    if final.max_videos:
        flags += ["--media-io-kwargs", compact({"video": {"num_frames": vision.max_video_frames}})]
    return flags


def _kernels(cluster: Cluster) -> list[str]:
    if cluster.engine.platform is not Platform.cuda:
        return []
    serving, engine = cluster.serving, cluster.engine
    flags = ["--kernel-config", compact({"enable_flashinfer_autotune": serving.flashinfer_autotune})]
    if cluster.model.geometry is Geometry.glm_flash:
        flags += ["--sparse-indexer-topk-backend", serving.indexer_topk_backend]
        factor = serving.attention_workspace_factor
        flags += ["--attention-config", compact({"sparse_mla_prefill_workspace_factor": factor})]
        if serving.kda_prefill_backend != "auto":
            flags += ["--kda-prefill-backend", serving.kda_prefill_backend]
    if engine.attention_backend is not None:
        flags += ["--attention-backend", engine.attention_backend]
    if engine.moe_backend != "auto":
        flags += ["--moe-backend", engine.moe_backend]
    return flags


def _parsers(cluster: Cluster, final: Settings) -> list[str]:
    serving = cluster.serving
    flags: list[str] = []
    if serving.tool_parser:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", serving.tool_parser]
    if serving.reasoning_parser:
        flags += ["--reasoning-parser", serving.reasoning_parser]
        effort = compact({"reasoning_effort": final.default_effort.value})
        flags += ["--default-chat-template-kwargs", effort]
    return flags


def _service(cluster: Cluster) -> list[str]:
    serving, api = cluster.serving, cluster.api
    flags = [
        switch("enable-prompt-tokens-details", serving.prompt_token_details),
        switch("enable-log-requests", serving.request_logging),
        *("--shutdown-timeout", str(serving.shutdown_timeout_seconds)),
    ]
    if api.allowed_origins:
        flags += ["--allowed-origins", compact(api.allowed_origins)]
    return flags

"""Flags and variables that the cluster file decides, each with the field to set instead.

`engine.extra_args` and `engine.extra_env` may add anything but these; a test checks that everything that
`render` writes is listed here.
"""

from __future__ import annotations

import re

SECRET_NAME = re.compile(r"(api[-_]?key|(^|[-_])token$|secret|passw|credential)", re.IGNORECASE)
"""Names that carry secrets. `--max-num-batched-tokens` and its kin do not match."""
SECRET_VALUE = re.compile(r"\b(sk-|hf_|ghp_)[A-Za-z0-9_-]{8,}|://[^/\s:@]+:[^/\s@]+@")
"""Values that are secrets by their looks: keys of well-known kinds, passwords in addresses."""

OWNED_FLAGS: dict[str, str] = {
    "--model": "model.path",
    "--revision": "model.revision",
    "--tokenizer": "model.path",
    "--served-model-name": "model.served_name",
    "--chat-template": "model.chat_template",
    "--quantization": "model.quantization",
    "-q": "model.quantization",
    "--dtype": "engine.dtype",
    "--host": "api.host",
    "--port": "api.port",
    "--uds": "api.host",
    "--api-key": "api.key_file",
    "--hf-token": "the credential of `sparkloom weights fetch`",
    "--allowed-origins": "api.allowed_origins",
    "--tensor-parallel-size": "nodes",
    "-tp": "nodes",
    "--pipeline-parallel-size": "nodes",
    "-pp": "nodes",
    "--data-parallel-size": "nodes",
    "-dp": "nodes",
    "--nnodes": "nodes",
    "-n": "nodes",
    "--node-rank": "nodes",
    "-r": "nodes",
    "--headless": "nodes[].role",
    "--master-addr": "nodes[].fabric.addresses",
    "--master-port": "rendezvous.master_port",
    "--distributed-executor-backend": "nodes",
    "--distributed-timeout-seconds": "deadlines.collective_seconds",
    "--cpu-distributed-timeout-seconds": "deadlines.collective_seconds",
    "--max-model-len": "serving.context_tokens",
    "--max-num-seqs": "serving.max_sequences",
    "--max-num-batched-tokens": "serving.max_batched_tokens",
    "--max-num-queued-reqs": "serving.max_queued_requests",
    "--long-prefill-token-threshold": "serving.long_prefill_tokens",
    "--enable-chunked-prefill": "serving.chunked_prefill",
    "--kv-cache-dtype": "serving.kv_cache_dtype",
    "--kv-cache-memory-bytes": "serving.kv_cache_bytes",
    "--num-gpu-blocks-override": "serving.kv_cache_bytes",
    "--gpu-memory-utilization": "memory.start_check_fraction",
    "--device-memory-utilization": "memory.start_check_fraction",
    "--enable-prefix-caching": "serving.prefix_caching",
    "--prefix-cache-retention-interval": "serving.prefix_cache_retention_tokens",
    "--enforce-eager": "serving.cuda_graphs",
    "--cudagraph-capture-sizes": "serving.cuda_graph_sizes",
    "--max-cudagraph-capture-size": "serving.cuda_graph_sizes",
    "--load-format": "serving.loader",
    "--safetensors-load-strategy": "serving.loader",
    "--speculative-config": "drafter",
    "-sc": "drafter",
    "--spec-method": "drafter.kind",
    "--spec-model": "drafter.path",
    "--spec-tokens": "drafter.tokens",
    "--language-model-only": "vision.enabled",
    "--limit-mm-per-prompt": "vision.max_images",
    "--mm-processor-kwargs": "vision.max_image_tokens",
    "--mm-processor-cache-gb": "vision.processor_cache_bytes",
    "--media-io-kwargs": "vision.max_video_frames",
    "--skip-mm-profiling": "vision",
    "--allowed-local-media-path": "nothing: clients may not read files of the server",
    "--enable-auto-tool-choice": "serving.tool_parser",
    "--tool-call-parser": "serving.tool_parser",
    "--reasoning-parser": "serving.reasoning_parser",
    "--default-chat-template-kwargs": "serving.default_effort",
    "--enable-prompt-tokens-details": "serving.prompt_token_details",
    "--enable-log-requests": "serving.request_logging",
    "--shutdown-timeout": "serving.shutdown_timeout_seconds",
    "--kernel-config": "serving.flashinfer_autotune",
    "--enable-flashinfer-autotune": "serving.flashinfer_autotune",
    "--sparse-indexer-topk-backend": "serving.indexer_topk_backend",
    "--kda-prefill-backend": "serving.kda_prefill_backend",
    "--attention-config": "serving.attention_workspace_factor",
    "--attention-backend": "engine.attention_backend",
    "--moe-backend": "engine.moe_backend",
    "--trust-remote-code": "nothing: the model class is vLLM's own",
    "--config": "nothing: a second file of flags would not be the same truth",
}
"""Flag in its positive long form -> what to set instead."""

OWNED_ENV: dict[str, str] = {
    "VLLM_HOST_IP": "nodes[].fabric.addresses",
    "VLLM_PORT": "rendezvous.rpc_port_base",
    "VLLM_API_KEY": "api.key_file",
    "VLLM_PLUGINS": "model.quantization",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "deadlines.execute_seconds",
    "VLLM_ENGINE_READY_TIMEOUT_S": "deadlines",
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "deadlines.stop_seconds",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "nothing: a dead engine must end its process",
    "VLLM_NO_USAGE_STATS": "nothing: usage statistics stay off",
    "VLLM_DO_NOT_TRACK": "nothing: usage statistics stay off",
    "VLLM_CACHE_ROOT": "engine.cache_directory",
    "VLLM_TARGET_DEVICE": "engine.platform",
    "VLLM_CPU_KVCACHE_SPACE": "serving.kv_cache_bytes",
    "VLLM_CPU_OMP_THREADS_BIND": "engine.omp_threads",
    "VLLM_SERVER_DEV_MODE": "nothing: it opens developer routes",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "nothing: it opens a route that loads code",
    "OMP_NUM_THREADS": "engine.omp_threads",
    "TRITON_CACHE_DIR": "engine.cache_directory",
    "TILELANG_CACHE_DIR": "engine.cache_directory",
    "FLASHINFER_WORKSPACE_BASE": "engine.cache_directory",
    "CUDA_HOME": "engine.cuda_home",
    "PYTORCH_CUDA_ALLOC_CONF": "engine.expandable_segments",
    "HF_HUB_OFFLINE": "nothing: ranks never download",
    "TRANSFORMERS_OFFLINE": "nothing: ranks never download",
    "GLOO_SOCKET_IFNAME": "nodes[].fabric.interfaces",
    "TP_SOCKET_IFNAME": "nodes[].fabric.interfaces",
    "NCCL_SOCKET_IFNAME": "nodes[].fabric.interfaces",
    "NCCL_IB_HCA": "nodes[].fabric.rdma_devices",
    "NCCL_IB_GID_INDEX": "nothing: it is found per node at each start",
    "NCCL_IB_ADDR_FAMILY": "nothing: it follows from the fabric addresses",
    "NCCL_IB_ADDR_RANGE": "nothing: it follows from the fabric addresses",
    "NCCL_IB_ROCE_VERSION_NUM": "nothing: RoCE v2 is required",
    "NCCL_IB_DISABLE": "fabric.require_rdma",
    "NCCL_IB_MERGE_NICS": "nothing: rails stay apart",
    "NCCL_NET": "fabric.require_rdma",
    "NCCL_NET_PLUGIN": "nothing: no plug-in is loaded",
    "NCCL_DEBUG": "fabric.nccl_debug",
    "NCCL_CROSS_NIC": "fabric.nccl_cross_nic",
    "NCCL_MIN_NCHANNELS": "fabric.nccl_channels",
    "NCCL_MAX_NCHANNELS": "fabric.nccl_channels",
    "NCCL_BUFFSIZE": "fabric.nccl_buffer_bytes",
    "NCCL_IGNORE_CPU_AFFINITY": "nothing: it is set",
    "NCCL_NVLS_ENABLE": "nothing: there is no NVLink switch",
    "NCCL_CUMEM_ENABLE": "nothing: it stays off on unified memory",
    "SPARKLOOM_EXL3_BACKEND": "serving.exl3_backend",
    "SPARKLOOM_CLUSTER_DIGEST": "nothing: it is computed",
    "SPARKLOOM_PATCHES": "patches",
    "SPARKLOOM_ABLIT": "ablit",
    "PYTHONPATH": "engine.command",
    "LD_PRELOAD": "nothing: it would change the process unseen",
}
"""Variable -> what to set instead."""


def owner_of(argument: str) -> str | None:
    """The field to set instead of this flag, if the cluster file decides it.

    argparse also takes unambiguous beginnings of a flag, so a beginning counts as the flag.
    """
    flag = normal_flag(argument)
    if flag in OWNED_FLAGS:
        return OWNED_FLAGS[flag]
    if len(flag) < 5 or not flag.startswith("--"):
        return None
    return next((field for owned, field in OWNED_FLAGS.items() if owned.startswith(flag)), None)


def normal_flag(argument: str) -> str:
    """A flag as argparse sees it: without value, dots of nested keys, `--no-` and underscores.

    vLLM takes `--max_model_len`, `--max-model-len=N` and `--kernel-config.x=y` alike.
    """
    flag = argument.partition("=")[0].partition(".")[0]
    if flag.startswith("--"):
        flag = "--" + flag[2:].replace("_", "-")
        if flag.startswith("--no-"):
            flag = "--" + flag[5:]
    return flag

"""What becomes of each knob: a field of the cluster file with a conversion, or a word on why none is needed.

`docs/knobs.md` says the same for people; a test compares the two.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

Convert = Callable[[str], Any]


def flag(value: str) -> bool:
    """1/0, on/off, true/false."""
    word = value.lower()
    if word in ("1", "on", "true", "yes", "all"):
        return True
    if word in ("0", "off", "false", "no", ""):
        return False
    raise ValueError("neither on nor off")


def inverted(value: str) -> bool:
    """A switch that is the opposite of ours."""
    return not flag(value)


def csv(value: str) -> list[str]:
    """A comma list."""
    return [v.strip() for v in value.split(",") if v.strip()]


def gib(value: str) -> int:
    """GiB to bytes."""
    return int(float(value) * 2**30)


def kib(value: str) -> int:
    """KiB to bytes."""
    return int(value) * 1024


def drafter(value: str) -> str:
    """SPEC_METHOD to drafter.kind."""
    return {"dflash": "dflash2", "dflash2": "dflash2", "mtp": "mtp", "none": "none"}[value.lower()]


def loader(value: str) -> str:
    """LOAD_FORMAT to serving.loader."""
    return {"instanttensor": "instanttensor", "eager": "eager"}.get(value.lower(), "plain")


def fair(value: str) -> str:
    """GLM53_MIXED_PREFILL_CHUNK to patches.fair_prefill."""
    return "fair" if value.lower() == "fair" else "stock"


def image(value: str) -> str:
    """An image by digest; a tag is refused."""
    if "@sha256:" not in value:
        raise ValueError("a tag moves; give the image by digest")
    return value


def revision(value: str) -> str:
    """A full commit."""
    if not re.fullmatch(r"[0-9a-f]{40}", value):
        raise ValueError("not a full commit of 40 digits; a branch moves")
    return value


def images(value: str) -> int:
    """LIMIT_MM (JSON or `image=N`) to vision.max_images."""
    match = re.search(r'image"?\s*[:=]\s*(\d+)', value)
    if match is None:
        raise ValueError("no image count in it")
    return int(match[1])


def factor(value: str) -> int:
    """GLM53_INDEXER_WORKSPACE to serving.attention_workspace_factor."""
    return {"rightsize": 2, "stock": 16}[value.lower()]


def draft_block(value: str) -> int | None:
    """GLM53_DRAFT_KV_COMPACT to patches.draft_kv_block_tokens."""
    return 2304 if flag(value) else None


def adaptive(value: str) -> bool:
    """GLM53_ADAPTIVE_K to patches.adaptive_verify_width."""
    return value.lower() not in ("", "off", "0")


FIELDS: dict[str, tuple[str, Convert]] = {
    "HEAD_IP": ("nodes[head].fabric.addresses", csv),
    "WORKER_IP": ("nodes[worker].fabric.addresses", csv),
    "HEAD_CX7_IF": ("nodes[head].fabric.interfaces", csv),
    "WORKER_CX7_IF": ("nodes[worker].fabric.interfaces", csv),
    "HEAD_CX7_IB": ("nodes[head].fabric.rdma_devices", csv),
    "WORKER_CX7_IB": ("nodes[worker].fabric.rdma_devices", csv),
    "NCCL_CROSS_NIC": ("fabric.nccl_cross_nic", flag),
    "NCCL_NCHANNELS": ("fabric.nccl_channels", int),
    "NCCL_DEBUG": ("fabric.nccl_debug", str),
    "NCCL_BUFFSIZE": ("fabric.nccl_buffer_bytes", int),
    "MASTER_PORT": ("rendezvous.master_port", int),
    "MODEL": ("model.repo", str),
    "MODEL_REVISION": ("model.revision", revision),
    "MODEL_FALLBACK": ("model.fallback_repo", str),
    "IMAGE": ("engine.image", image),
    "PORT": ("api.port", int),
    "SERVED_MODEL_NAME": ("model.served_name", str),
    "ENFORCE_EAGER": ("serving.cuda_graphs", inverted),
    "MAX_MODEL_LEN": ("serving.context_tokens", int),
    "MAX_NUM_SEQS": ("serving.max_sequences", int),
    "MAX_NUM_BATCHED_TOKENS": ("serving.max_batched_tokens", int),
    "LONG_PREFILL_TOKEN_THRESHOLD": ("serving.long_prefill_tokens", int),
    "KV_CACHE_DTYPE": ("serving.kv_cache_dtype", str),
    "LOAD_FORMAT": ("serving.loader", loader),
    "DEFAULT_MAX_NEW_TOKENS": ("patches.default_new_tokens", int),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": ("deadlines.execute_seconds", int),
    "PYTORCH_CUDA_ALLOC_CONF": ("engine.expandable_segments", lambda v: "expandable_segments:True" in v),
    "CHAT_TEMPLATE_HOST": ("model.chat_template", str),
    "CACHE_ROOT": ("engine.cache_directory", str),
    "GLM53_DENSE_FP8": ("patches.dense_quantization", flag),
    "GLM53_DENSE_EXL3": ("patches.dense_quantization", flag),
    "SPEC_METHOD": ("drafter.kind", drafter),
    "DFLASH_MODEL": ("drafter.repo", str),
    "DFLASH_REVISION": ("drafter.revision", revision),
    "GLM53_ADAPTIVE_K": ("patches.adaptive_verify_width", adaptive),
    "GLM53_DRAFT_KV_COMPACT": ("patches.draft_kv_block_tokens", draft_block),
    "GLM53_INDEXER_WORKSPACE": ("serving.attention_workspace_factor", factor),
    "GLM53_APC_NO_STORE": ("patches.per_request_no_store", flag),
    "GLM53_MIXED_PREFILL_CHUNK": ("patches.fair_prefill", fair),
    "GLM53_FAIR_PREFILL_SHARE": ("patches.fair_prefill_share", float),
    "GLM53_FAIR_PREFILL_MAX_INTERVAL_MS": ("patches.fair_prefill_max_gap_ms", int),
    "GLM53_SPINWAIT_MS": ("patches.spin_window_ms", float),
    "LANGUAGE_MODEL_ONLY": ("vision.enabled", inverted),
    "LIMIT_MM": ("vision.max_images", images),
    "MM_IMAGE_TOKENS": ("vision.max_image_tokens", int),
    "VIDEO_NUM_FRAMES": ("vision.max_video_frames", int),
    "MM_PROCESSOR_CACHE_GB": ("vision.processor_cache_bytes", gib),
    "GLM53_DEFAULT_REASONING_EFFORT": ("serving.default_effort", str),
    "GLM53_SUPPRESS_STOPS_IN_REASONING": ("patches.stop_strings_after_reasoning", flag),
    "GLM53_HOST_MEM_HYGIENE": ("memory.drop_page_cache", flag),
    "GLM53_PREFLIGHT_MEMORY_HEADROOM_KIB": ("memory.host_floor_bytes", kib),
}
"""Knob -> (field, conversion of its text)."""

SECRETS: dict[str, str] = {
    "VLLM_API_KEY": "write it to the file that api.key_file names (mode 600)",
    "API_KEY": "write it to the file that api.key_file names (mode 600)",
    "HF_TOKEN": "give it to `sparkloom weights fetch` as a credential file",
    "GHCR_TOKEN": "log in with the container tool",
}
"""Knobs whose value is never shown or copied."""

NOTES: list[tuple[str, str]] = [
    (r"WORKER_(USER|HOME|SSH)", "no SSH at run time: every node runs its own agent"),
    (r"NCCL_IB_GID_INDEX|HEAD_GID|WORKER_GID", "found at each start, per node and device"),
    (r"USE_HOST_NCCL|NCCL_HOST_DIR|NCCL_SO_NAME", "NCCL is pinned; fabric.minimum_nccl guards it"),
    (r"SOCKET_IFNAME|\w+_HOST_IP|WORKER_FABRIC_IP", "follows from nodes[].fabric.addresses"),
    (r"EXPECTED_SHARDS", "the shard index says how many; every file is verified by hash"),
    (r"MODEL_CACHE_NAME", "see model.path"),
    (r"GLM53_MODEL_PRESET", "another checkpoint is another model.repo and model.revision"),
    (r"HF_\w+", "belongs to `sparkloom weights fetch`; ranks are offline"),
    (r"NFS_\w+", "see `sparkloom weights serve`"),
    (r"IMAGE_PLATFORM|GHCR_USER", "the image is built or pulled by the flake or the container tool"),
    (
        r"SKIP_\w+|PULL|BUILD|FORCE_SYNC|REFRESH_WEIGHTS|TAIL",
        "steps are commands of their own and skip what is verified",
    ),
    (r"TP|NNODES", "the number of nodes"),
    (r"QUANTIZATION", "model.quantization, exl3 by default"),
    (r"GPU_MEM_UTIL", "bytes decide: see `sparkloom plan`"),
    (r"GLM53_LOAD_\w+|GLM53_COLD_LOAD_\w+|INSTANTTENSOR_\w+", "see serving.loader"),
    (r"PREFIX_MATCH_UNIT|GLM53_FINEGRAINED_APC", "the drafter's cache group turns finer hits off"),
    (r"CG_ESTIMATE", "memory.cuda_graph_bytes_per_size; pool bytes are given, nothing is estimated"),
    (r"READY_TIMEOUT", "see deadlines: one per phase"),
    (r"TORCH_CUDA_ARCH_LIST|FLASHINFER_CUDA_ARCH_LIST", "fixed at build time: 12.1a"),
    (r"CHAT_TEMPLATE", "see model.chat_template"),
    (r"GLM53_VALIDATE_PYTHON", "one interpreter runs everything"),
    (r"(TRITON|TILELANG)_CACHE\w*|NV_HOST_CACHE", "see engine.cache_directory"),
    (r"EXL3_\w+|GLM53_EXL3_MOE_FAST|GLM53_COOP_GEOMETRY", "our kernels choose: serving.exl3_backend"),
    (r"GLM53_KDA_\w+|GLM53_DENSE_\w+", "see patches.dense_quantization"),
    (r"GLM53_SENS8_ROUTER", "changes the model's routing"),
    (r"DFLASH_DRAFT_TP", "vLLM always splits the drafter over all ranks"),
    (
        r"(GLM53_ADAPTIVE_K)?_\w+|GLM53_ADAPTIVE_K_\w+|DFLASH_VERIFY_TOKENS",
        "see patches.adaptive_verify_width",
    ),
    (r"GLM53_APC_RETENTION_INTERVAL(_SWA)?", "the grain differs: set serving.prefix_cache_retention_tokens"),
    (r"GLM53_KV_CAPACITY_LOG", "`sparkloom plan` says it before the start"),
    (r"GLM53_EXPOSE_CACHE_RESET", "a developer route; restart the pair instead"),
    (r"GLM53_FAIR_PREFILL_\w+", "chunks follow from share and gap"),
    (r"GLM53_MIXED_PREFILL_\w+", "never left the experiment stage"),
    (r"SKIP_MM_PROFILING", "always skipped; the plan reserves for what is allowed"),
    (r"GLM53_EXTRA_ENV", "copy what is still needed to engine.extra_env"),
    (r"GLM53_BOOT_SHAPE_WARMUP|GLM53_WARMUP_REQ_TIMEOUT", "see deadlines.warmup_seconds"),
    (r"GLM53_WARMUP_\w+", "ready only after checked answers: see probe"),
    (r"GLM53_DISPLAY_KV\w*|\w+_DRM_CARD", "borrows the screen's memory; not offered"),
    (r"OFFLOAD_\w+|GLM53_KV_OFFLOAD\w*", "no tier below the pool yet"),
    (r"ABLIT\w*", "write the section ablit by hand and accept the change: docs/ablit.md"),
    (
        r"TP3_HEAD_OVERRIDE|ENABLE_EXPERT_PARALLEL|MM_ENCODER_TP_MODE|HAREM_KDA_FLASHKDA",
        "belongs to three nodes; see docs/knobs.md",
    ),
    (r"VLLM_SM120_SPARSE_MLA_SLICE_TOKENS", "vLLM 0.33 has its own kernel path"),
    (r"GLM53_BENCH_BASE", "an option of `sparkloom bench`"),
    (r"GLM53_\w*LIMIT|EXTRA_ARGS", "copy what is still needed to engine.extra_args"),
    (r"DFLASH_TOKENS|MTP_TOKENS", "drafter.tokens of the drafter that is chosen"),
]
"""Pattern of knobs without a field of their own -> what stands in their place."""


def note(name: str) -> str | None:
    """Why a knob needs no field; None for a knob that no recipe has."""
    return next((text for pattern, text in NOTES if re.fullmatch(pattern, name)), None)


def kv_bytes(extra_args: str) -> int | None:
    """`--kv-cache-memory-bytes N` out of EXTRA_ARGS."""
    try:
        words = shlex.split(extra_args)
    except ValueError:
        return None
    for i, word in enumerate(words):
        key, _, value = word.partition("=")
        if key == "--kv-cache-memory-bytes":
            text = value or (words[i + 1] if i + 1 < len(words) else "")
            return int(text) if text.isdecimal() else None
    return None

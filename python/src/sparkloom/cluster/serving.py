"""How it is served: limits, cache, vision, parsers, and the switches of this project's patches.

A field that may be null is decided by the profile, then by the model default (see `settings.py`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from sparkloom.cluster.base import Bytes, Count, Section


class Effort(StrEnum):
    """Thinking effort that the chat template knows."""

    low = "low"
    high = "high"
    max = "max"


class Loader(StrEnum):
    """How weights come from disk."""

    plain = "plain"
    eager = "eager"
    instanttensor = "instanttensor"


class Vision(Section):
    """Images and videos. Everything allowed here is reserved in the memory plan."""

    enabled: bool | None = None
    """Load the vision tower. false renders --language-model-only. null: the profile's, else true."""
    max_images: Annotated[int, Field(ge=0, le=512)] | None = None
    """Images allowed in one request, its resent history included. null: the profile's, else 16."""
    max_videos: Annotated[int, Field(ge=0, le=16)] | None = None
    """Videos allowed in one request. null: the profile's, else 0."""
    max_image_tokens: Annotated[int, Field(ge=16, le=8000)] | None = None
    """Cap of tokens per image; larger images are scaled down. null: the profile's, else 2048."""
    max_video_frames: Annotated[int, Field(ge=1, le=256)] = 32
    """Frames taken from one video; each costs like an image."""
    processor_cache_bytes: Bytes | None = None
    """Host cache of prepared images (--mm-processor-cache-gb). null: the profile's, else 1 GiB."""
    max_images_in_flight: Annotated[int, Field(ge=1, le=512)] = 16
    """Images over all requests at once that the plan reserves host memory for, never fewer than one full
    request's."""


class Serving(Section):
    """What vLLM is told."""

    context_tokens: Annotated[int, Field(ge=256, le=1_048_576)] | None = None
    """Longest prompt plus answer in tokens (--max-model-len). null: the profile's, else 524288."""
    max_sequences: Annotated[int, Field(ge=1, le=256)] | None = None
    """Requests that run at once (--max-num-seqs). Each reserves 30 pool blocks. null: the profile's, else
    4."""
    max_batched_tokens: Annotated[int, Field(ge=64, le=65_536)] | None = None
    """Tokens of one engine step (--max-num-batched-tokens). Larger prefills faster and needs more
    activation memory. null: the profile's, else 7168."""
    kv_cache_dtype: Annotated[str, Field(pattern="^[a-z0-9_]+$")] = "fp8"
    """KV data type (--kv-cache-dtype). Only fp8 (stored as fp8_ds_mla) works on sm_12x; the CPU platform
    takes `auto`."""
    kv_cache_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    """Size of the KV pool of every rank in bytes (--kv-cache-memory-bytes). null: the profile's, else
    what context and sequences need. The plan must cover it."""
    prefix_caching: bool | None = None
    """Reuse the cache of a shared prompt beginning. null: the profile's, else true (false on the CPU
    platform)."""
    prefix_cache_retention_tokens: Annotated[int, Field(ge=0, le=1_048_576)] | None = None
    """Keep a checkpoint of the linear layers' state every so many tokens (multiple of the block of 4608);
    0 keeps only the last boundary and shared prefixes. null: the profile's, else 0."""
    cuda_graphs: bool | None = None
    """Capture CUDA graphs. false renders --enforce-eager: slower, less memory, faster start. null: true
    (false on the CPU platform)."""
    cuda_graph_sizes: Annotated[list[Count], Field(min_length=1, max_length=64)] | None = None
    """Token counts to capture. null: multiples of tokens+1 up to max_sequences, derived from the drafter."""
    long_prefill_tokens: Annotated[int, Field(ge=0, le=1_048_576)] | None = None
    """Most prefill tokens of one prompt in a step that other requests share (--long-prefill-token-
    threshold). 0: no limit. null: the profile's, else 3584."""
    max_queued_requests: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Requests in flight before new ones get 503 (--max-num-queued-reqs). null: the profile's, else 64."""
    default_effort: Effort | None = None
    """Thinking effort of a request that names none. null: the profile's, else high (the template's own
    default is max: 4x the tokens)."""
    loader: Loader = Loader.plain
    """`plain` (memory-mapped), `eager` (whole files, for network folders) or `instanttensor` (direct I/O:
    fast, keeps a ring of 5.6 GiB)."""
    tool_parser: Annotated[str, Field(pattern="^[a-z0-9_]*$")] = "glm47"
    """Parser of tool calls (--tool-call-parser). Empty: none, tool calls off."""
    reasoning_parser: Annotated[str, Field(pattern="^[a-z0-9_]*$")] = "glm45"
    """Parser of the reasoning part (--reasoning-parser). Empty: none."""
    chunked_prefill: bool = True
    """Split long prompts over engine steps."""
    prompt_token_details: bool = True
    """Report cached prompt tokens in `usage` (--enable-prompt-tokens-details); the benchmarks need it."""
    request_logging: bool = False
    """Write prompts to the log (--enable-log-requests). Off: prompts are private."""
    shutdown_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    """How long a stopping server lets running requests end (--shutdown-timeout); at most half of
    `deadlines.stop_seconds`. `sparkloom drain` waits longer before it stops anything."""
    attention_workspace_factor: Annotated[int, Field(ge=2, le=16)] = 2
    """Sparse-MLA prefill workspace in multiples of the context
    (attention_config.sparse_mla_prefill_workspace_factor)."""
    indexer_topk_backend: Annotated[str, Field(pattern="^(auto|per_row|persistent|flashinfer|torch)$")] = (
        "per_row"
    )
    """Kernel of the sparse indexer's top-k. `per_row` is safe on GB10; `torch` is slow and for cross-
    checks."""
    kda_prefill_backend: Annotated[str, Field(pattern="^(auto|flashkda|triton)$")] = "auto"
    """Prefill kernel of the linear-attention layers."""
    flashinfer_autotune: bool = False
    """FlashInfer's autotuner at start; it has failed on GB10."""
    exl3_backend: Annotated[str, Field(pattern="^(auto|reference|cuda|exllamav3)$")] = "auto"
    """Kernels of the EXL3 plug-in (SPARKLOOM_EXL3_BACKEND)."""


class FairPrefill(StrEnum):
    """How a newcomer's prompt shares steps with running answers."""

    stock = "stock"
    fair = "fair"


class Patches(Section):
    """Switches of the changes that this project makes to vLLM. Each is documented in docs/knobs.md."""

    pdl_gate: bool = True
    """Turn programmatic dependent launch off on sm_12x; a race on the state kernels was reported with it
    on."""
    adaptive_verify_width: bool = False
    """Verify only a prefix of the draft block, chosen per step from what was accepted lately. Lossless.
    Each width gets CUDA graphs of its own."""
    draft_kv_block_tokens: Annotated[int, Field(ge=256, le=16_384)] | None = None
    """KV block of the DFlash2 drafter in tokens; must divide the manager block of 4608. 2304 lowers the
    pool's stride from 47.2 to 34.9 MB (+35 % blocks). null: the manager block."""
    free_indexer_logits: bool = False
    """Free the sparse indexer's logits after each chunk of a prefill (about half of 1 GiB at peak). Needs
    a patched vLLM: without the patch a rank refuses to start."""
    stop_strings_after_reasoning: bool = True
    """Stop strings sleep until the reasoning part has ended."""
    key_on_all_routes: bool = True
    """Ask for the API key on every generating route; vLLM itself leaves /invocations and others open."""
    spin_window_ms: Annotated[float, Field(gt=0, le=1000)] | None = None
    """How long vLLM's message reader spins before it sleeps, in milliseconds. null: 16 on CUDA, 1000 (stock)
    on the CPU platform."""
    default_new_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Answer tokens of a request that names no limit (a default, not a cap). null: the profile's, else
    32768."""
    fair_prefill: FairPrefill | None = None
    """`fair` bounds the gap that a newcomer's prefill tears into running answers; `stock` is vLLM's
    order. null: the profile's, else fair."""
    fair_prefill_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of the time that a prefill may take while answers run, with `fair`."""
    fair_prefill_max_gap_ms: Annotated[int, Field(ge=10, le=60_000)] = 2000
    """Longest pause of a running answer during a newcomer's prefill in milliseconds, with `fair`."""
    per_request_no_store: bool = True
    """Let a request say that its prompt must not be written to the prefix cache."""
    keep_prefix_share: Annotated[float, Field(gt=0, le=0.9)] | None = None
    """Let a request name a group whose cached blocks are evicted last; at most this share of the pool is kept
    so. null: such a wish is ignored."""
    dense_quantization: bool = False
    """Let dense layers that the checkpoint holds as EXL3 or weight-only FP8 (KDA, MLA, MLPs, shared experts,
    lm_head) load as they are. Off: such a checkpoint is refused."""

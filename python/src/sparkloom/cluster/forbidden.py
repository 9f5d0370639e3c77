"""Combinations that vLLM accepts or fails on late, refused here with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkloom.cluster.checks import Problem
from sparkloom.cluster.model import DrafterKind, Geometry
from sparkloom.cluster.operation import Platform
from sparkloom.cluster.owned import OWNED_ENV, SECRET_NAME, SECRET_VALUE, owner_of
from sparkloom.cluster.settings import Settings, settings
from sparkloom.cluster.types import Cluster
from sparkloom.plan.kv import Layout
from sparkloom.plan.layouts import layout_of

FP8_KV = ("fp8", "fp8_e4m3", "fp8_ds_mla")
SMALLEST_DRAFT_BLOCK = 256


def forbidden(cluster: Cluster) -> list[Problem]:
    """Every forbidden combination in `cluster`."""
    found = settings(cluster)
    rules = [_moe, _kv_dtype, _draft, _batch, _vision, _cache, _pool, _prefill_patch]
    problems = [problem for rule in rules for problem in rule(cluster, found)]
    return problems + list(_extra_args(cluster)) + list(_extra_env(cluster))


def _glm(cluster: Cluster) -> bool:
    return cluster.model.geometry is Geometry.glm_flash


def _cuda(cluster: Cluster) -> bool:
    return cluster.engine.platform is Platform.cuda


def _moe(cluster: Cluster, _: Settings) -> Iterator[Problem]:
    backend = cluster.engine.moe_backend
    if cluster.model.quantization == "exl3" and backend != "auto":
        yield Problem(
            "engine.moe_backend",
            backend,
            f"the {backend} MoE backend cannot read EXL3 experts",
            'use "auto": the plug-in brings its own kernels (serving.exl3_backend chooses among them)',
        )


def _kv_dtype(cluster: Cluster, _: Settings) -> Iterator[Problem]:
    dtype = cluster.serving.kv_cache_dtype
    if _cuda(cluster) and _glm(cluster) and dtype not in FP8_KV:
        yield Problem(
            "serving.kv_cache_dtype",
            dtype,
            "the sparse-MLA kernel of sm_12x reads only packed fp8 rows of 656 bytes",
            'use "fp8"',
        )


def _draft(cluster: Cluster, found: Settings) -> Iterator[Problem]:
    drafter = cluster.drafter
    if drafter.kind is DrafterKind.none and drafter.tokens:
        yield Problem(
            "drafter.tokens", drafter.tokens, "there is no drafter", "leave tokens out or choose a drafter"
        )
    if cluster.patches.adaptive_verify_width and found.draft_tokens < 2:
        yield Problem(
            "patches.adaptive_verify_width",
            True,
            f"of {found.draft_tokens} drafted tokens there is no shorter draft to choose",
            "leave it out, or choose a drafter that proposes 2 tokens or more",
        )
    if found.drafter is not DrafterKind.dflash2:
        if cluster.patches.draft_kv_block_tokens is not None:
            yield Problem(
                "patches.draft_kv_block_tokens",
                cluster.patches.draft_kv_block_tokens,
                "only the DFlash2 drafter has a KV block of its own",
                'leave it out or choose "drafter": {"kind": "dflash2"}',
            )
        return
    if drafter.kv_cache_dtype != "auto":
        yield Problem(
            "drafter.kv_cache_dtype",
            drafter.kv_cache_dtype,
            "no attention backend of sm_12x serves the drafter with this type",
            'use "auto" (the drafter then keeps 16-bit KV; without the key it would inherit fp8_ds_mla)',
        )
    if drafter.attention_backend == "TRITON_ATTN":
        yield Problem(
            "drafter.attention_backend",
            drafter.attention_backend,
            "it attends causally where the drafter was trained without a mask: acceptance falls to a third",
            "leave it out",
        )
    if found.draft_tokens > 7:
        yield Problem(
            "drafter.tokens",
            found.draft_tokens,
            "the DFlash2 block has one anchor and 7 proposals",
            "use 7 or fewer",
        )
    block = cluster.patches.draft_kv_block_tokens
    manager = layout_of(cluster, found).block_tokens
    if block is not None and (manager % block or block % 64):
        good = [b for b in range(manager, SMALLEST_DRAFT_BLOCK - 1, -64) if manager % b == 0]
        yield Problem(
            "patches.draft_kv_block_tokens",
            block,
            f"it must be a multiple of 64 and divide the manager block of {manager} tokens",
            f"use one of {', '.join(map(str, good))}",
        )


def _batch(cluster: Cluster, found: Settings) -> Iterator[Problem]:
    rows = (found.draft_tokens + 1) * found.max_sequences
    if found.max_batched_tokens < rows:
        yield Problem(
            "serving.max_batched_tokens",
            found.max_batched_tokens,
            f"{found.max_sequences} requests verify {rows} tokens in one step",
            f"use at least {rows}, or fewer sequences",
        )
    if not cluster.serving.chunked_prefill and found.max_batched_tokens < found.context_tokens:
        yield Problem(
            "serving.chunked_prefill",
            False,
            f"a prompt of {found.context_tokens} tokens must fit in one step of {found.max_batched_tokens}",
            "leave chunked_prefill out, or raise max_batched_tokens to context_tokens",
        )
    if found.long_prefill_tokens > found.max_batched_tokens:
        yield Problem(
            "serving.long_prefill_tokens",
            found.long_prefill_tokens,
            f"larger than a step of {found.max_batched_tokens} tokens, so it would limit nothing",
            f"use at most {found.max_batched_tokens}, or 0 for no limit",
        )
    sizes = cluster.serving.cuda_graph_sizes
    if sizes and max(sizes) > found.max_batched_tokens:
        yield Problem(
            "serving.cuda_graph_sizes",
            sizes,
            f"a step has at most {found.max_batched_tokens} tokens",
            "leave the larger sizes out",
        )
    if sizes and not found.cuda_graphs:
        yield Problem(
            "serving.cuda_graph_sizes", sizes, "CUDA graphs are off", "leave the sizes out or turn graphs on"
        )
    if cluster.serving.cuda_graphs and not _cuda(cluster):
        yield Problem("serving.cuda_graphs", True, "the CPU platform has no CUDA graphs", "leave it out")


def _vision(cluster: Cluster, found: Settings) -> Iterator[Problem]:
    vision = cluster.vision
    if not found.vision and (vision.max_images or vision.max_videos):
        field = "vision.max_images" if vision.max_images else "vision.max_videos"
        yield Problem(
            field,
            vision.max_images or vision.max_videos,
            "the vision tower is not loaded",
            "set vision.enabled to true or allow none",
        )
        return
    if not found.vision:
        return
    frames = found.max_videos * vision.max_video_frames
    tokens = (found.max_images + frames) * found.max_image_tokens
    if tokens >= found.context_tokens:
        yield Problem(
            "vision.max_images",
            found.max_images,
            f"{found.max_images} images and {frames} video frames of {found.max_image_tokens} tokens are "
            f"{tokens} tokens, more than the context of {found.context_tokens}",
            f"allow at most {max(0, found.context_tokens // found.max_image_tokens - frames - 1)} images "
            "or fewer tokens per image",
        )


def _cache(cluster: Cluster, found: Settings) -> Iterator[Problem]:
    if cluster.patches.keep_prefix_share is not None and not found.prefix_caching:
        yield Problem(
            "patches.keep_prefix_share",
            cluster.patches.keep_prefix_share,
            "there is no prefix cache to keep anything in",
            "leave it out or turn serving.prefix_caching on",
        )
    retention = found.prefix_cache_retention_tokens
    if retention and not found.prefix_caching:
        yield Problem(
            "serving.prefix_cache_retention_tokens",
            retention,
            "prefix caching is off",
            "leave it out or turn serving.prefix_caching on",
        )
    elif retention and _glm(cluster) and retention % (block := layout_of(cluster, found).block_tokens):
        down, up = retention // block * block, (retention // block + 1) * block
        yield Problem(
            "serving.prefix_cache_retention_tokens",
            retention,
            f"state is kept only at multiples of the block of {block} tokens",
            f"use {up}" + (f" or {down}" if down else ""),
        )


def _pool(cluster: Cluster, found: Settings) -> Iterator[Problem]:
    """The pool must hold one request of the full context, and no machine may be smaller than the sum."""
    pool = found.kv_cache_bytes
    if pool is None:
        yield Problem(
            "serving.kv_cache_bytes",
            None,
            "the geometry of this model is not known, so the pool cannot be computed",
            "give the pool in bytes, for example 8589934592",
        )
        return
    if not _glm(cluster) or cluster.serving.kv_cache_bytes is None:
        return
    layout: Layout = layout_of(cluster, found)
    needed = layout.needed_bytes(found.context_tokens, found.max_sequences)
    if pool < needed:
        largest = layout.largest_context(pool, found.max_sequences, found.context_tokens)
        yield Problem(
            "serving.kv_cache_bytes",
            pool,
            f"{found.context_tokens} tokens beside {found.max_sequences - 1} other requests need {needed}",
            f"give at least {needed}, or lower context_tokens to {largest}"
            if largest
            else f"give at least {needed}, or lower max_sequences",
        )
        return
    from sparkloom.plan.needs import needs

    rest = max(sum(item.bytes for item in needs(cluster, node, 0)) for node in cluster.nodes)
    if pool + rest > cluster.memory.total_bytes:
        yield Problem(
            "serving.kv_cache_bytes",
            pool,
            f"pinned above the plan: with {rest} bytes for weights, activation reserve and host floor it "
            f"exceeds the {cluster.memory.total_bytes} bytes of a node; vLLM takes no activation reserve off "
            "a pinned pool and would die at the first long prompt",
            f"give at most {max(0, cluster.memory.total_bytes - rest)}, or leave it out",
        )


def _prefill_patch(cluster: Cluster, found: Settings) -> Iterator[Problem]:
    if found.default_new_tokens > found.context_tokens:
        yield Problem(
            "patches.default_new_tokens",
            found.default_new_tokens,
            f"no answer can be longer than the context of {found.context_tokens}",
            f"use at most {found.context_tokens}",
        )


def _extra_args(cluster: Cluster) -> Iterator[Problem]:
    for i, argument in enumerate(cluster.engine.extra_args):
        where = f"engine.extra_args[{i}]"
        if SECRET_NAME.search(argument.partition("=")[0]) or SECRET_VALUE.search(argument):
            yield Problem(
                where, "<hidden>", "secrets never go into argv, where every user sees them", "use a key file"
            )
        elif argument.startswith("-") and (owner := owner_of(argument)):
            yield Problem(where, argument, "this flag belongs to the cluster file", f"set {owner} instead")
        elif "\n" in argument or "\0" in argument:
            yield Problem(where, argument, "a flag has no line breaks", "write one flag per element")


def _extra_env(cluster: Cluster) -> Iterator[Problem]:
    for name, value in cluster.engine.extra_env.items():
        where = f"engine.extra_env.{name}"
        if SECRET_NAME.search(name) or SECRET_VALUE.search(value):
            yield Problem(
                where, "<hidden>", "secrets never go into the cluster file", "use api.key_file or the agent's"
            )
        elif owner := OWNED_ENV.get(name):
            yield Problem(where, value, "this variable belongs to the cluster file", f"set {owner} instead")
        elif re.search(r"[\n\0]", value):
            yield Problem(where, value, "a value has no line breaks", "write one line")

"""Run inside vLLM, with the hooks of argv[1] (JSON options): print what vLLM does as one JSON object."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from types import SimpleNamespace
from typing import Any

THINK, END, A, B, STOP, C, EOS = range(7)
WORDS = ["<think>", "</think>", "a", "b", "STOP", "c", "<eos>"]


def stop_strings() -> list[Any]:
    """Texts at which stop strings end a request, for several batchings of the same tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.decoder = decoders.Fuse()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=raw)

    def run(prompt: list[int], tokens: list[int], step: int, stop: str = "STOP", keep: bool = False) -> Any:
        request: Any = SimpleNamespace(
            sampling_params=SamplingParams(stop=[stop], include_stop_str_in_output=keep),
            prompt_token_ids=prompt,
            prompt_embeds=None,
            request_id="r",
        )
        d: Any = IncrementalDetokenizer.from_new_request(tokenizer, request)
        for i in range(0, len(tokens), step):
            if hit := d.update(tokens[i : i + step], False):
                return [hit, d.output_text, len(d.output_token_ids)]
        return [None, d.output_text, len(d.output_token_ids)]

    long = [A, STOP, B, END, B, C, STOP, A]
    return [
        [
            run([C, THINK], long, step),
            run([C, END], long, step),
            run([C], [THINK, STOP, END, A, STOP], step),
            run([C, THINK], [STOP, END, A], step, "STOP</think>"),
            run([C, THINK], [STOP, END, STOP], step, keep=True),
        ]
        for step in (1, 2, 3, 8)
    ]


def routes() -> dict[str, list[int]]:
    """Status of routes without and with the key."""
    from starlette.responses import PlainTextResponse
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    guard = AuthenticationMiddleware(PlainTextResponse("text"), tokens=["k"])

    async def status(path: str, *headers: tuple[bytes, bytes]) -> int:
        seen: list[int] = []

        async def send(message: Any) -> None:
            seen.extend([message["status"]] if "status" in message else [])

        async def receive() -> Any:
            return {"type": "http.request"}

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": list(headers),
            "query_string": b"",
        }
        await guard(scope, receive, send)
        return seen[0]

    async def both(path: str) -> list[int]:
        return [await status(path), await status(path, (b"authorization", b"Bearer k"))]

    paths = ["/health", "/metrics", "/invocations", "/tokenize", "/v1/models", "/docs", "/generative_scoring"]
    paths += ["/", "/healthz", "/health/../invocations"]
    return {path: asyncio.run(both(path)) for path in paths}


def new_tokens() -> list[Any]:
    """Limits that requests get."""
    from vllm.entrypoints.openai.chat_completion import serving
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens as f

    limits = [f(1000, None, 10, {}), f(1000, 900, 10, {}), f(100, None, 10, {})]
    return [*limits, f(1000, None, 10, {"max_tokens": 7}), serving.get_max_tokens is f]


def cache(blocks: int) -> Any:
    """vLLM's cache manager with so many blocks of four tokens."""
    import torch
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["l"], spec)]
    config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    names = inspect.signature(KVCacheManager.__init__).parameters
    more: dict[str, Any] = {k: 4 for k in ("hash_block_size", "scheduler_block_size") if k in names}
    if "max_num_batched_tokens" in names:
        more["max_num_batched_tokens"] = 64
    return KVCacheManager(kv_cache_config=config, max_model_len=64, enable_caching=True, **more)


def ask(manager: Any, tokens: list[int], extra: dict[str, Any] | None = None) -> int | None:
    """Serve one prompt from start to end: the cached tokens that it found; None when it had no room."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    request = Request(
        request_id=str(tokens),
        prompt_token_ids=tokens,
        pooling_params=None,
        sampling_params=SamplingParams(max_tokens=1, extra_args=extra),
        block_hasher=get_request_block_hasher(4, sha256),
    )
    blocks, found = manager.get_computed_blocks(request)[:2]
    if manager.allocate_slots(request, len(tokens) - found, found, blocks) is None:
        return None
    request.num_computed_tokens = len(tokens)
    manager.free(request)
    return int(found)


def prefix_hits(extra: dict[str, Any] | None) -> list[int | None]:
    """Cached tokens that two equal requests find, one after the other."""
    manager = cache(64)
    return [ask(manager, list(range(16)), extra) for _ in range(2)]


def kept_prefix() -> dict[str, Any]:
    """What a pool of 17 blocks still has of two conversations after a burst of one-off requests."""
    manager = cache(17)
    texts = {name: [at + i for i in range(16)] for name, at in (("kept", 0), ("plain", 100), ("other", 200))}

    def burst(start: int) -> None:
        for i in range(6):
            ask(manager, [start + 50 * i + j for j in range(20)])

    ask(manager, texts["plain"])
    ask(manager, texts["kept"], {"keep_prefix": "a"})
    burst(1000)
    hits = [ask(manager, texts["plain"]), ask(manager, texts["kept"])]
    ask(manager, texts["other"], {"keep_prefix": "b"})  # limit 8: both groups fit
    burst(2000)
    hits += [ask(manager, texts["kept"]), ask(manager, texts["other"])]
    ask(manager, list(range(300, 316)), {"keep_prefix": "c"})  # the third one costs the first its place
    burst(3000)
    hits += [ask(manager, texts["kept"]), ask(manager, texts["other"])]
    full = ask(manager, list(range(500, 564)))  # all 16 blocks: kept ones must give way
    left = manager.block_pool.get_num_free_blocks()
    book = getattr(manager.block_pool, "sparkloom_book", None)
    reset = manager.reset_prefix_cache()
    return {
        "hits": hits,
        "full": full,
        "left": left,
        "reset": reset,
        "kept": None if book is None else len(book),
    }


def main() -> None:
    """Install, look, print."""
    from sparkloom.vllm.hooks import install

    install(json.loads(sys.argv[1]))
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    found = {
        "stops": stop_strings(),
        "routes": routes(),
        "new_tokens": new_tokens(),
        "hits": [prefix_hits(None), prefix_hits({"skip_writing_prefix_cache": 1})],
        "kept": kept_prefix(),
        "spin": inspect.signature(SpinCondition.__init__).parameters["busy_loop_s"].default,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

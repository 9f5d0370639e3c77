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


def prefix_hits(extra: dict[str, Any] | None) -> list[int]:
    """Cached tokens that two equal requests find, one after the other."""
    import torch
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["l"], spec)]
    config = KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=groups)
    names = inspect.signature(KVCacheManager.__init__).parameters
    more: dict[str, Any] = {k: 4 for k in ("hash_block_size", "scheduler_block_size") if k in names}
    if "max_num_batched_tokens" in names:
        more["max_num_batched_tokens"] = 64
    manager = KVCacheManager(kv_cache_config=config, max_model_len=64, enable_caching=True, **more)
    hits = []
    for i in range(2):
        request = Request(
            request_id=f"r{i}",
            prompt_token_ids=list(range(16)),
            pooling_params=None,
            sampling_params=SamplingParams(max_tokens=1, extra_args=extra),
            block_hasher=get_request_block_hasher(4, sha256),
        )
        blocks, n = manager.get_computed_blocks(request)[:2]
        hits.append(n)
        manager.allocate_slots(request, 16 - n, n, blocks)
        request.num_computed_tokens = 16
        manager.free(request)
    return hits


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
        "spin": inspect.signature(SpinCondition.__init__).parameters["busy_loop_s"].default,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Where the generations of a parity gate come from: a server, an engine in this process, transformers.

All are greedy and go on past end-of-text tokens, so that every prompt yields the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkloom.errors import Exit, SparkloomError
from sparkloom.parity import Generation

TOP = 5


def from_server(
    base: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> list[Generation]:
    """Ask an OpenAI-compatible vLLM server at `base` for all prompts (token ids) at once.

    Raises:
        SparkloomError: the server cannot be reached or refuses.
    """
    import httpx

    body = {
        "model": model,
        "prompt": [list(prompt) for prompt in prompts],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    try:
        answer = httpx.post(f"{base}/v1/completions", json=body, headers=dict(headers or {}), timeout=timeout)
        answer.raise_for_status()
        choices = answer.json()["choices"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise SparkloomError(
            f"no completions from {base}: {error}", mend="read the head's log", code=Exit.NETWORK
        ) from error
    return [_from_choice(choice) for choice in sorted(choices, key=lambda choice: int(choice["index"]))]


def _from_choice(choice: dict[str, Any]) -> Generation:
    found = choice["logprobs"]
    return Generation(
        tuple(choice["token_ids"]),
        tuple(found["token_logprobs"]),
        tuple(
            {int(name.removeprefix("token_id:")): float(value) for name, value in alternatives.items()}
            for alternatives in found["top_logprobs"]
        ),
    )


def from_engine(llm: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[Generation]:
    """Run the prompts through a `vllm.LLM`."""
    from vllm import SamplingParams

    how = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, logprobs=TOP)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    found = []
    for answer in llm.generate(asked, how, use_tqdm=False):
        output = answer.outputs[0]
        top = [{token: entry.logprob for token, entry in step.items()} for step in output.logprobs]
        chosen = tuple(step[token] for step, token in zip(top, output.token_ids, strict=True))
        found.append(Generation(tuple(output.token_ids), chosen, tuple(top)))
    return found


def teacher(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
    """What a transformers model would say greedily, asked at every position of a given continuation.

    One forward pass over prompt and continuation: at each position the likeliest token given the
    continuation so far. As long as the continuation agrees, this is the model's own greedy text; at the
    first difference a gate stops comparing.
    """
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), -1)
    top = logprobs.topk(TOP)
    return Generation(
        tuple(top.indices[:, 0].tolist()),
        tuple(top.values[:, 0].tolist()),
        tuple(
            dict(zip(ids, values, strict=True))
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ),
    )

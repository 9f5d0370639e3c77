"""A default, not a cap, of new tokens for requests that name no limit.

Why: without a limit a request may run to the end of the context; vLLM's only switch
(`--override-generation-config max_new_tokens`) caps requests that do name a larger one.
Upstream: `get_max_tokens` in `vllm/entrypoints/serve/utils/api_utils.py`; issue text: "`max_new_tokens` in
the generation config caps requests that name a larger limit. Please let a server set a default that applies
only to requests without one."
Default on, with the profile's number (`default_new_tokens`).
Tested: vLLM's own function with and without the hook (tests/vllm/hooks); no GPU is involved.
Drop when: vLLM tells a default from a cap.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from sparkloom.vllm.hooks.shape import expect_parameters


def with_default(original: Callable[..., int], default: int) -> Callable[..., int]:
    """`get_max_tokens` that fills in `default` where neither request nor server names a limit."""

    @functools.wraps(original)
    def get_max_tokens(
        max_model_len: int,
        max_tokens: int | None,
        input_length: int,
        default_sampling_params: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> int:
        if max_tokens is None and default_sampling_params.get("max_tokens") is None:
            max_tokens = default
        return original(max_model_len, max_tokens, input_length, default_sampling_params, *args, **kwargs)

    return get_max_tokens


def install(value: object) -> None:
    """Replace the function where it is defined and where it was already imported."""
    from vllm.entrypoints.serve.utils import api_utils

    original = api_utils.get_max_tokens
    names = ("max_model_len", "max_tokens", "input_length", "default_sampling_params")
    expect_parameters("default_new_tokens", original, *names)
    changed = with_default(original, int(str(value)))
    for module in list(sys.modules.values()):
        names_of = vars(module)  # not getattr: lazy packages would import themselves whole
        if names_of.get("get_max_tokens") is original:
            names_of["get_max_tokens"] = changed

"""Blocker 12, silent: the CPU convolution forgets how many drafts were accepted.

Upstream: `causal_conv1d_update_cpu` takes `num_accepted_tokens` into `**kwargs` and drops it. With drafts
the window of past inputs must start after the last accepted token; without that it reads the wrong inputs,
soon NaN.
Here: a torch form for that case; without drafts upstream's kernel stays.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def with_drafts(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    indices: torch.Tensor,
    accepted: torch.Tensor,
    starts: torch.Tensor,
) -> torch.Tensor:
    """x [T, C] of several requests; conv_state [slots, C, width - 1 + drafts] is updated in place."""
    past, out, begin = weight.shape[1] - 1, torch.empty_like(x), starts.tolist()
    for i, slot in enumerate(indices.tolist()):
        s, e = begin[i], begin[i + 1]
        if e == s:
            continue
        offset = int(accepted[i]) - 1
        window = torch.cat([conv_state[slot, :, offset : offset + past].float(), x[s:e].t().float()], -1)
        y = F.conv1d(window[None], weight.float()[:, None], bias, groups=window.shape[0])[0]
        out[s:e] = F.silu(y).t().to(x.dtype)
        conv_state[slot, :, : past - 1 + e - s] = window[:, 1:].to(conv_state.dtype)
    return out


def apply() -> None:
    """Let the KDA layer take this form when there are drafts."""
    import vllm.models.glm5next.common.kda as upstream

    plain = upstream.causal_conv1d_update

    def causal_conv1d_update(
        x: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: Any = None,
        conv_state_indices: torch.Tensor | None = None,
        num_accepted_tokens: torch.Tensor | None = None,
        query_start_loc: torch.Tensor | None = None,
        max_query_len: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if num_accepted_tokens is None:
            return plain(
                x,
                conv_state,
                weight,
                bias,
                activation=activation,
                conv_state_indices=conv_state_indices,
                query_start_loc=query_start_loc,
                **kwargs,
            )
        assert conv_state_indices is not None
        assert query_start_loc is not None
        return with_drafts(
            x, conv_state, weight, bias, conv_state_indices, num_accepted_tokens, query_start_loc
        )

    upstream.causal_conv1d_update = causal_conv1d_update

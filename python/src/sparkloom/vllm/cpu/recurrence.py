"""Blockers 4 to 7: the kernels of KDA, GLM-5.3's linear attention, are Triton.

Upstream: `gather_initial_states` (asserts CUDA), `chunk_kda_with_fused_gate`, `scatter_states` and
`fused_recurrent_kda`. Here: the plain recurrence, one token after another, in float32. The state of a head is
[V, K]; per token

    h = h * exp(g);  h += beta * (v - h k) k^T;  o = h q

with q and k of unit length and q scaled by K^-1/2. With drafts each drafted token has a state slot of its
own, and the recurrence starts from the slot of the last accepted one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F


def gather_initial_states(
    state: torch.Tensor, indices: torch.Tensor, has_initial: torch.Tensor
) -> torch.Tensor:
    """Copies of the states at `indices`, zero for requests that begin."""
    out = state[indices.long()].clone()
    out[~has_initial] = 0
    return out


def scatter_states(state: torch.Tensor, source: torch.Tensor, indices: torch.Tensor) -> None:
    """Write `source` into the states at `indices`."""
    state[indices.long()] = source.to(state.dtype)


scatter_states.register_warmup = lambda **kwargs: None  # type: ignore[attr-defined]  # the model calls it


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length one."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def decay(raw: torch.Tensor, a_log: torch.Tensor, bias: torch.Tensor, lower: float | None) -> torch.Tensor:
    """The logarithm of the forget gate per head and channel, float32 [T, H, K], never above 0."""
    raw = raw.float() + bias.float().view(raw.shape[-2:])
    rate = a_log.float().view(-1, 1).exp()
    return -rate * F.softplus(raw) if lower is None else lower * torch.sigmoid(rate * raw)


def recur(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_gate: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """T tokens of one request: q, k, log_gate [T, H, K], v [T, H, V], beta [T, H], state [H, V, K].

    Returns the outputs [T, H, V] and the state after the last token, float32.
    """
    q, k, v = unit(q.float()) * q.shape[-1] ** -0.5, unit(k.float()), v.float()
    out, h, gate = torch.empty_like(v), state.float(), log_gate.exp()
    for t in range(q.shape[0]):
        h = h * gate[t][:, None, :]
        delta = (v[t] - (h * k[t][:, None, :]).sum(-1)) * beta[t][:, None]
        h = h + delta[:, :, None] * k[t][:, None, :]
        out[t] = (h * q[t][:, None, :]).sum(-1)
    return out, h


def chunk_kda_with_fused_gate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor,
    g_bias: torch.Tensor,
    initial_state: torch.Tensor,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    cu_seqlens: torch.Tensor,
    safe_gate: bool,
    lower_bound: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts: several requests side by side in one row of tokens."""
    gate = decay(raw_g[0], A_log, g_bias, lower_bound)
    out, final = torch.zeros_like(v), torch.empty_like(initial_state)
    for i, (s, e) in enumerate(pairwise(cu_seqlens.tolist())):
        o, final[i] = recur(
            q[0, s:e], k[0, s:e], v[0, s:e], gate[s:e], beta[0, s:e].float(), initial_state[i]
        )
        out[0, s:e] = o.to(out.dtype)
    return out, final


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
    cu_seqlens: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    out: torch.Tensor | None = None,
    sigmoid_beta: bool = False,
    a_log: Any = None,
    g_bias: Any = None,
    compute_gate: bool = False,
    lower_bound: float | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode and verification: states are read from and written to the cache in place."""
    gate = decay(g[0], a_log, g_bias, lower_bound) if compute_gate else g[0].float()
    b = beta[0].float().sigmoid() if sigmoid_beta else beta[0].float()
    result, state = (torch.zeros_like(v) if out is None else out), initial_state
    for i, (s, e) in enumerate(pairwise(cu_seqlens.tolist())):
        if e == s:
            continue
        if ssm_state_indices.dim() == 1:
            slot = int(ssm_state_indices[i])
            o, h = recur(q[0, s:e], k[0, s:e], v[0, s:e], gate[s:e], b[s:e], state[slot])
            result[0, s:e], state[slot] = o.to(result.dtype), h.to(state.dtype)
            continue
        assert num_accepted_tokens is not None
        slots = ssm_state_indices[i].tolist()
        h = state[slots[int(num_accepted_tokens[i]) - 1]]
        for t in range(s, e):
            at = slice(t, t + 1)
            o, h = recur(q[0, at], k[0, at], v[0, at], gate[at], b[at], h)
            result[0, at], state[slots[t - s]] = o.to(result.dtype), h.to(state.dtype)
    return result, state


def apply() -> None:
    """Give the KDA layer these functions."""
    import vllm.models.glm5next.common.kda as upstream

    for function in (
        gather_initial_states,
        scatter_states,
        chunk_kda_with_fused_gate,
        fused_recurrent_kda,
    ):
        setattr(upstream, function.__name__, function)

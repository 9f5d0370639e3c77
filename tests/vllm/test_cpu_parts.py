"""The CPU forms of GLM-5.3's parts, each against its definition written another way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from sparkloom.vllm.cpu import (  # noqa: E402
    conv,
    draft_norm,
    latent_attention,
    mhc,
    recurrence,
    swiglu,
)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kda_inputs(tokens: int) -> dict[str, torch.Tensor]:
    """One request: 2 heads, 8 keys, 8 values."""
    return {
        "q": seeded(1, tokens, 2, 8, seed=1),
        "k": seeded(1, tokens, 2, 8, seed=2),
        "v": seeded(1, tokens, 2, 8, seed=3),
        "g": seeded(1, tokens, 2, 8, seed=4),
        "beta": seeded(1, tokens, 2, seed=5),
    }


A_LOG, BIAS = torch.tensor([0.1, -0.2]), torch.zeros(16)


def by_matrix(x: dict[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The delta rule in float64 as products of whole matrices: h' = h diag(a) (I - b k k^T) + b v k^T."""
    q, k, v, g = (x[name][0].double() for name in ("q", "k", "v", "g"))
    b = x["beta"][0].double().sigmoid()
    q, k = F.normalize(q, dim=-1) * 8**-0.5, F.normalize(k, dim=-1)
    decay = (-5.0 * torch.sigmoid(A_LOG.double().exp()[:, None] * g)).exp()
    h, out = state.double().clone(), torch.zeros_like(v)
    for t in range(q.shape[0]):
        for head in range(2):
            a, kk = torch.diag(decay[t, head]), k[t, head]
            forget = torch.eye(8, dtype=torch.float64) - b[t, head] * torch.outer(kk, kk)
            h[head] = h[head] @ a @ forget + b[t, head] * torch.outer(v[t, head], kk)
            out[t, head] = h[head] @ q[t, head]
    return out, h


def decode(x: dict[str, torch.Tensor], state: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
    tokens = x["q"].shape[1]
    return recurrence.fused_recurrent_kda(
        **x,
        initial_state=state,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=torch.tensor([0, tokens]),
        sigmoid_beta=True,
        a_log=A_LOG,
        g_bias=BIAS,
        compute_gate=True,
        lower_bound=-5.0,
        **kwargs,
    )[0]


def test_recurrence_equals_the_delta_rule() -> None:
    x, state = kda_inputs(6), seeded(3, 2, 8, 8, seed=9)
    want, last = by_matrix(x, state[1])
    got = decode(x, state, ssm_state_indices=torch.tensor([1]))
    assert torch.allclose(got[0].double(), want, atol=1e-5)
    assert torch.allclose(state[1].double(), last, atol=1e-5)


def test_prompt_form_equals_decode_form() -> None:
    x, state = kda_inputs(5), seeded(1, 2, 8, 8, seed=9)
    out, final = recurrence.chunk_kda_with_fused_gate(
        q=x["q"],
        k=x["k"],
        v=x["v"],
        raw_g=x["g"],
        beta=x["beta"].sigmoid(),
        A_log=A_LOG,
        g_bias=BIAS,
        initial_state=state.clone(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=torch.tensor([0, 5]),
        safe_gate=True,
        lower_bound=-5.0,
    )
    assert torch.allclose(out, decode(x, state, ssm_state_indices=torch.tensor([0])), atol=1e-6)
    assert torch.allclose(final, state, atol=1e-6)


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_drafts_go_on_from_the_last_accepted_state(accepted: int) -> None:
    x, states = kda_inputs(3), seeded(4, 2, 8, 8, seed=9)
    plain = states.clone()
    want = decode(x, plain[[accepted - 1]], ssm_state_indices=torch.tensor([0]))
    got = decode(
        x,
        states,
        ssm_state_indices=torch.tensor([[0, 1, 2]]),
        num_accepted_tokens=torch.tensor([accepted]),
    )
    assert torch.allclose(got, want, atol=1e-6)


def test_new_requests_start_from_zero() -> None:
    state = seeded(3, 2, 2, 2)
    found = recurrence.gather_initial_states(state, torch.tensor([2, 0]), torch.tensor([True, False]))
    assert torch.equal(found[0], state[2])
    assert not found[1].any()
    recurrence.scatter_states(state, torch.ones(1, 2, 2, 2), torch.tensor([1]))
    assert bool((state[1] == 1).all())


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_conv_window_starts_after_the_accepted_tokens(accepted: int) -> None:
    channels, width, drafts = 4, 4, 3
    history, new = seeded(channels, width - 1 + drafts - 1), seeded(drafts, channels, seed=1)
    weight = seeded(channels, width, seed=2)
    past = history[:, accepted - 1 : accepted - 1 + width - 1]
    want = F.silu(F.conv1d(torch.cat([past, new.t()], 1)[None], weight[:, None], groups=channels)[0]).t()
    state = torch.zeros(2, channels, width - 1 + drafts - 1)
    state[1] = history
    got = conv.with_drafts(
        new, state, weight, None, torch.tensor([1]), torch.tensor([accepted]), torch.tensor([0, drafts])
    )
    assert torch.allclose(got, want, atol=1e-6)
    assert torch.equal(state[1], torch.cat([past, new.t()], 1)[:, 1:])


def test_mhc_applies_the_norm_and_mixes_doubly_stochastic() -> None:
    streams, n, d = seeded(3, 4, 16), 4, 16
    fn, base, scale = seeded(24, 64, seed=1) * 0.02, seeded(24, seed=2) * 0.3, torch.ones(3)
    weight = seeded(d, seed=3)
    args = (streams, fn, scale, base, 1e-6, 1e-6, 1e-6, 2.0, 20)
    post, comb, plain = mhc.pre(None, *args)
    _, _, normed = mhc.pre(None, *args, norm_weight=weight, norm_eps=1e-5)
    assert torch.allclose(normed, F.rms_norm(plain, (d,), weight, 1e-5), atol=1e-6)
    assert not torch.allclose(normed, plain, atol=0.1)
    for axis in (1, 2):
        assert torch.allclose(comb.sum(axis), torch.ones(3, n), atol=1e-3)
    x = seeded(3, d, seed=4)
    after = mhc.post(None, x, streams, post, comb)
    for t in range(3):
        for i in range(n):
            want = post[t, i] * x[t] + sum(comb[t, k, i] * streams[t, k] for k in range(n))
            assert torch.allclose(after[t, i], want, atol=1e-5)
    both = mhc.post_pre(None, x, streams, post, comb, *args[1:], norm_weight=weight, norm_eps=1e-5)
    again = mhc.pre(None, after, *args[1:], norm_weight=weight, norm_eps=1e-5)
    assert torch.equal(both[0], after)
    assert all(torch.equal(a, b) for a, b in zip(both[1:], again, strict=True))


def test_mtp_norm_zeroes_the_first_embedding() -> None:
    embeds, previous = seeded(2, 8), seeded(2, 8, seed=1)
    found = draft_norm.fused_eh_norm(
        torch.tensor([0, 5]), embeds, previous, torch.ones(8), 2 * torch.ones(8), 1e-6
    )
    assert found.shape == (2, 16)
    assert not found[0, :8].any()
    assert torch.allclose(found[1, :8], F.rms_norm(embeds[1], (8,), eps=1e-6), atol=1e-6)
    assert torch.allclose(found[:, 8:], 2 * F.rms_norm(previous, (8,), eps=1e-6), atol=1e-5)


class Causal:
    """An indexer that hides nothing but the future."""

    def __init__(self, positions: torch.Tensor) -> None:
        self.positions = positions

    def mask(self, start: int, end: int, blocks: torch.Tensor, length: int) -> torch.Tensor:
        return torch.arange(length)[None] <= self.positions[start:end, None]

    def write(self, *args: object) -> None:
        pass


def test_latent_attention_prompt_and_decode_agree() -> None:
    """Absorbed decode (in the latent space) against the prompt form (keys and values from the latents)."""
    rank, heads, nope, value, block, length = 32, 2, 8, 8, 16, 21
    up = seeded(heads * (nope + value), rank, seed=1) * 0.2
    cache = torch.zeros(4, block, rank)
    impl = SimpleNamespace(
        kv_lora_rank=rank,
        num_heads=heads,
        qk_nope_head_dim=nope,
        v_head_dim=value,
        scale=nope**-0.5,
        kv_b_proj=lambda x: (x @ up.t(), None),
        kpool=Causal(torch.arange(length)),
    )
    table, latent = torch.tensor([[3, 1]]), seeded(length, rank)
    slots = torch.tensor([table[0, t // block] * block + t % block for t in range(length)] + [-1])
    latent_attention.write(impl, torch.cat([latent, torch.ones(1, rank)]), cache, slots)
    assert torch.equal(cache[table[0]].flatten(0, 1)[:length], latent)
    assert int((cache == 1).sum()) == 0  # the slot -1 is padding

    q = seeded(length, heads, nope, seed=2)
    output = torch.zeros(length, heads * value)
    prompt = SimpleNamespace(query_start_loc=torch.tensor([0, length]), block_table=table)
    latent_attention.prefill(impl, q, cache, SimpleNamespace(prefill=prompt, num_decode_tokens=0), output)

    w = up.view(heads, nope + value, rank)
    absorbed = torch.einsum("hd,hdr->hr", q[-1], w[:, :nope])[None]
    impl.kpool = Causal(torch.tensor([length - 1]))
    step = SimpleNamespace(seq_lens=torch.tensor([length]), block_table=table)
    hidden, _ = latent_attention.decode(impl, absorbed, cache, SimpleNamespace(decode=step))
    want = torch.einsum("hr,hvr->hv", hidden[0], w[:, nope:]).flatten()
    assert torch.allclose(output[-1], want, atol=1e-5)


def test_native_experts_clamp_where_it_matters() -> None:
    x, gate_up, down = seeded(3, 16) * 4, seeded(4, 16, 16, seed=1), seeded(4, 16, 8, seed=2)
    weights, ids = torch.rand(3, 2), torch.tensor([[0, 1], [2, 1], [3, 0]])

    def want(limit: float) -> torch.Tensor:
        out = torch.zeros(3, 16)
        for t in range(3):
            for k in range(2):
                gate, up = (gate_up[ids[t, k]] @ x[t]).split(8)
                gate, up = torch.minimum(gate, torch.tensor(limit)), up.clip(-limit, limit)
                out[t] += weights[t, k] * (down[ids[t, k]] @ (F.silu(gate) * up))
        return out

    got = swiglu.experts(x, weights, ids, gate_up, down, 10.0)
    assert torch.allclose(got, want(10.0), atol=1e-3)
    assert not torch.allclose(got, want(1e9), atol=1.0)  # the limit bites on these inputs
    halves = [
        swiglu.experts(x, weights, ids, gate_up[part], down[part], 10.0, torch.tensor(places))
        for part, places in ((slice(0, 2), [0, 1, -1, -1]), (slice(2, 4), [-1, -1, 0, 1]))
    ]
    assert torch.allclose(halves[0] + halves[1], got, atol=1e-3)

"""Every path against the plain reference, on a GPU."""

from __future__ import annotations

import pytest
import reference as ref
import torch

from sparkloom.kernels import ops

pytestmark = pytest.mark.gpu
BITS = [2, 3, 4, 5, 6, 8]
BOOKS = ["3inst", "mcg", "mul1"]
RMS, PEAK = 2e-3, 1.5e-2  # the peak is over up to a million values, in units of the output's RMS


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    rms, peak = ref.error(got, want)
    assert rms <= RMS, (rms, peak)
    assert peak <= PEAK, (rms, peak)


def routed(tokens: int, experts: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([torch.randperm(experts, device="cuda")[:top_k] for _ in range(tokens)]).int()
    return torch.rand(tokens, top_k, device="cuda") / top_k, ids


def run(
    x: torch.Tensor,
    w: dict[str, torch.Tensor],
    weights: torch.Tensor,
    ids: torch.Tensor,
    book: str,
    path: str,
    **kw: object,
) -> torch.Tensor:
    layer = ops.Experts(**w, codebook13=book, codebook2=book, limit=kw.pop("limit", None))
    out = torch.full(x.shape, float("nan"), device="cuda", dtype=torch.float32)
    space = torch.full((layer.workspace_bytes(len(x), ids.shape[1]),), 255, dtype=torch.uint8, device="cuda")
    return ops.moe(x, layer, weights, ids, path=path, out=out, workspace=space, **kw)


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("bits", BITS)
def test_reconstruct_is_bit_exact(bits: int, book: str) -> None:
    trellis = ref.random_linear(256, 384, bits, (3,), "cuda")[0]
    assert torch.equal(ops.reconstruct(trellis, book), ref.decode(trellis, book))
    assert torch.equal(ops.reconstruct(trellis, book, torch.bfloat16), ref.decode(trellis, book).bfloat16())


@pytest.mark.parametrize("path", ["decode", "prefill"])
@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("bits", BITS)
def test_moe_rates_and_codebooks(bits: int, book: str, path: str) -> None:
    w = ref.random_experts(6, 512, 256, bits, bits, device="cuda")
    x = torch.randn(37, 512, device="cuda").bfloat16()
    weights, ids = routed(37, 6, 3)
    close(run(x, w, weights, ids, book, path, limit=10.0), ref.moe(x, w, weights, ids, (book, book), 10.0))


@pytest.mark.parametrize("path", ["decode", "prefill"])
@pytest.mark.parametrize(("bits13", "bits2"), [(4, 6), (3, 8), (5, 4)])
def test_moe_mixed_rates_and_separate_input_scales(bits13: int, bits2: int, path: str) -> None:
    w = ref.random_experts(5, 384, 128, bits13, bits2, shared=False, device="cuda")
    x = torch.randn(50, 384, device="cuda").half()
    weights, ids = routed(50, 5, 2)
    close(run(x, w, weights, ids, "mcg", path), ref.moe(x, w, weights, ids))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64])
def test_moe_decode_rows(tokens: int, shared: bool) -> None:
    w = ref.random_experts(16, 640, 384, 4, 4, shared, "cuda")
    x = torch.randn(tokens, 640, device="cuda").bfloat16()
    weights, ids = routed(tokens, 16, 4)
    close(run(x, w, weights, ids, "mcg", "decode", limit=2.0), ref.moe(x, w, weights, ids, limit=2.0))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 47, 65, 95, 97, 127, 128, 129, 255, 257, 700])
def test_moe_prefill_rows(tokens: int, shared: bool) -> None:
    w = ref.random_experts(3, 384, 256, 4, 4, shared, "cuda")
    x = torch.randn(tokens, 384, device="cuda").bfloat16()
    weights, ids = routed(tokens, 3, 2)
    close(run(x, w, weights, ids, "mcg", "prefill", limit=2.0), ref.moe(x, w, weights, ids, limit=2.0))


def test_moe_prefill_ring_wraps_many_times() -> None:
    w = ref.random_experts(64, 1024, 256, 4, 4, device="cuda")
    x = torch.randn(4000, 1024, device="cuda").bfloat16()
    weights, ids = routed(4000, 64, 8)
    close(run(x, w, weights, ids, "mcg", "prefill"), ref.moe(x, w, weights, ids))


@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_moe_odd_routing(path: str) -> None:
    w = ref.random_experts(9, 256, 128, 4, 4, device="cuda")
    tokens, top_k = 64, 8
    x = torch.randn(tokens, 256, device="cuda").bfloat16()
    weights = torch.rand(tokens, top_k, device="cuda")
    one = torch.full((tokens, top_k), 5, dtype=torch.int32, device="cuda")
    repeated = torch.randint(0, 2, (tokens, top_k), dtype=torch.int32, device="cuda")
    elsewhere = torch.randint(-3, 9, (tokens, top_k), dtype=torch.int32, device="cuda")
    elsewhere[3] = -1  # a token that nobody serves here
    beyond = elsewhere.where(elsewhere >= 0, 1000)  # ids out of range count as served elsewhere
    for ids in (one, repeated, elsewhere):
        close(run(x, w, weights, ids, "mcg", path), ref.moe(x, w, weights, ids))
    close(run(x, w, weights, beyond, "mcg", path), ref.moe(x, w, weights, elsewhere))
    weights[::2] = 0
    got = run(x, w, weights, one, "mcg", path)
    assert not got[::2].any()
    assert not run(x, w, weights, elsewhere, "mcg", path)[3].any()


@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_moe_expert_map(path: str) -> None:
    w = ref.random_experts(4, 256, 128, 4, 4, device="cuda")
    x = torch.randn(40, 256, device="cuda").bfloat16()
    weights, ids = routed(40, 8, 4)
    table = torch.tensor([-1, 0, -1, 1, 2, -1, 3, -1], dtype=torch.int32, device="cuda")
    close(run(x, w, weights, ids, "mcg", path, expert_map=table), ref.moe(x, w, weights, table[ids.long()]))


@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_moe_repeats_to_the_bit(path: str) -> None:
    w = ref.random_experts(32, 1024, 512, 4, 4, device="cuda")
    x = torch.randn(64, 1024, device="cuda").bfloat16()
    weights, ids = routed(64, 32, 8)
    first = run(x, w, weights, ids, "mcg", path)
    for _ in range(5):
        assert torch.equal(run(x, w, weights, ids, "mcg", path), first)


@pytest.mark.parametrize("tokens", [1, 8, 40, 200])
def test_graph_replay_follows_the_routing(tokens: int) -> None:
    w = ref.random_experts(24, 512, 256, 4, 4, device="cuda")
    layer = ops.Experts(**w, limit=10.0)
    x = torch.randn(tokens, 512, device="cuda").bfloat16()
    weights, ids = routed(tokens, 24, 8)
    out = torch.empty_like(x)
    space = torch.empty(layer.workspace_bytes(tokens, 8), dtype=torch.uint8, device="cuda")
    ops.moe(x, layer, weights, ids, workspace=space, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.moe(x, layer, weights, ids, workspace=space, out=out)
    for _ in range(4):
        new_weights, new_ids = routed(tokens, 24, 8)
        ids.copy_(new_ids)
        weights.copy_(new_weights)
        x.copy_(torch.randn_like(x))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, ops.moe(x, layer, weights, ids))
        rms, _ = ref.error(out, ref.moe(x, w, weights, ids, limit=10.0))
        assert rms < 4e-3  # bfloat16 output


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", [1, 9, 64, 65, 200])
def test_linear(rows: int, bits: int, book: str) -> None:
    trellis, suh, svh = ref.random_linear(256, 384, bits, (), "cuda")
    bias = torch.randn(384, device="cuda").half()
    x = torch.randn(rows, 256, device="cuda").half()
    out = torch.full((rows, 384), float("nan"), device="cuda")
    got = ops.linear(x, trellis, suh, svh, codebook=book, bias=bias, out=out)
    close(got, ref.linear(x, trellis, suh, svh, book, bias))


@pytest.mark.parametrize("experts", [1, 7, 288, 1024])
def test_route(experts: int) -> None:
    ids = torch.randint(-1, experts, (300, 8), dtype=torch.int32, device="cuda")
    header = torch.empty(4, dtype=torch.int32, device="cuda")
    items = torch.empty(2400 // 16 + experts + 1, 4, dtype=torch.int32, device="cuda")
    slots = torch.empty(2400, dtype=torch.int32, device="cuda")
    torch.ops.sparkloom_exl3.route(ids, None, experts, 16, header, items, slots)
    flat = ids.flatten()
    seen = []
    for e, first, rows, _ in items[: int(header[0])].tolist():
        assert 0 < rows <= 16
        part = slots[first : first + rows]
        assert (flat[part.long()] == e).all()
        seen += part.tolist()
    assert sorted(seen) == (flat >= 0).nonzero().flatten().tolist()


def test_hadamard() -> None:
    x = torch.randn(33, 384, device="cuda").half()
    before, after = torch.randn(384, device="cuda").half(), torch.randn(384, device="cuda").half()
    got = ops.hadamard(x, before, after, torch.float32)
    close(got, ref.hadamard(x * before) * after.double())

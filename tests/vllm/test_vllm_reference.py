"""The reference back end against the codec: same weights, same sums, bounded memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from sparkloom import exl3  # noqa: E402
from sparkloom.errors import SparkloomError  # noqa: E402
from sparkloom.vllm import backends, options  # noqa: E402
from sparkloom.vllm.backends import reference  # noqa: E402
from sparkloom.vllm.backends.base import (  # noqa: E402
    ExpertsSpec,
    ExpertsTensors,
    LinearSpec,
    LinearTensors,
)

CASES = [
    *(("mcg", bits) for bits in range(1, 9)),
    ("3inst", 4),
    ("3inst", 7),
    ("mul1", 4),
    ("mul1", 1.5),
    ("mul1", 2.5),
    ("mul1", 3.5),
]


def random_linear(
    rng: np.random.Generator, k: int, n: int, bits: float = 4, codebook: str = "mcg"
) -> exl3.Linear:
    """Any bit string is a valid trellis; scales with random signs."""
    trellis = rng.integers(-32768, 32768, (k // 16, n // 16, round(16 * bits)), dtype=np.int16)
    suh = rng.choice([-1.0, 1.0], k) * rng.uniform(0.5, 1.5, k)
    svh = rng.choice([-1.0, 1.0], n) * rng.uniform(0.01, 0.05, n)
    return exl3.Linear(trellis, suh.astype(np.float16), svh.astype(np.float16), codebook, None)


@pytest.mark.parametrize(("codebook", "bits"), CASES)
def test_decode_equals_the_codec_bit_for_bit(codebook: str, bits: float) -> None:
    linear = random_linear(np.random.default_rng(round(bits * 2)), 128, 256, bits, codebook)
    ours = reference.decode(torch.from_numpy(linear.trellis), codebook).numpy()
    assert np.array_equal(ours, exl3.decode(linear.trellis, codebook).astype(np.float32))


def test_dense_weight_equals_the_codec() -> None:
    linear = random_linear(np.random.default_rng(1), 256, 384)
    ours = reference.dense(*(torch.from_numpy(t) for t in (linear.trellis, linear.suh, linear.svh)), "mcg")
    assert ours.shape == (384, 256)
    want = exl3.dense_weight(linear).T
    assert np.abs(ours.numpy() - want).max() <= 2e-6 * np.abs(want).max()


def test_dense_weight_while_another_type_is_the_default() -> None:
    """vLLM loads weights with the model's type as torch's default."""
    linear = random_linear(np.random.default_rng(2), 128, 128)
    tensors = [torch.from_numpy(t) for t in (linear.trellis, linear.suh, linear.svh)]
    want = reference.dense(*tensors, "mcg")
    reference.hadamard.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(reference.dense(*tensors, "mcg"), want)
    finally:
        torch.set_default_dtype(torch.float32)
        reference.hadamard.cache_clear()


def test_dense_layer_can_be_compiled() -> None:
    """torch.compile traces the method of a dense layer into one graph (Qwen3-MoE runs so)."""
    pytest.importorskip("vllm")
    from sparkloom.vllm.linear import Exl3LinearMethod

    method = Exl3LinearMethod.__new__(Exl3LinearMethod)
    method.runs = [lambda x: x + 1, lambda x: x * 2]

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return method.apply(self, x)

    x = torch.ones(2, 3)
    compiled = torch.compile(Layer(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), torch.full((2, 6), 2.0))


E, H, INNER, TOP = 4, 256, 128, 2


def experts(
    codebook: str = "mcg", bits: float = 4
) -> tuple[ExpertsSpec, ExpertsTensors, list[list[exl3.Linear]]]:
    """A small MoE layer: spec, stacked tensors, and the codec's linears [gate, up, down] per expert."""
    rng = np.random.default_rng(5)
    linears = [
        [random_linear(rng, k, n, bits, codebook) for k, n in ((H, INNER), (H, INNER), (INNER, H))]
        for _ in range(E)
    ]

    def stack(name: str, part: slice) -> torch.Tensor:
        per_expert = [np.stack([getattr(m, name) for m in expert[part]]) for expert in linears]
        return torch.from_numpy(np.stack(per_expert))

    both, down = slice(0, 2), slice(2, 3)
    tensors = ExpertsTensors(
        w13_trellis=stack("trellis", both),
        w13_suh=stack("suh", both),
        w13_svh=stack("svh", both),
        w2_trellis=stack("trellis", down)[:, 0],
        w2_suh=stack("suh", down)[:, 0],
        w2_svh=stack("svh", down)[:, 0],
    )
    spec = ExpertsSpec(
        "layers.0.experts", E, H, INNER, TOP, 64, bits, bits, codebook, 0.2, torch.float32, False
    )
    return spec, tensors, linears


def oracle(
    linears: list[list[exl3.Linear]], x: np.ndarray, weights: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """The layer in float64 with the codec's dense weights."""
    out = np.zeros_like(x, dtype=np.float64)
    for t, k in np.ndindex(*ids.shape):
        gate, up, down = (exl3.dense_weight(m).astype(np.float64) for m in linears[ids[t, k]])
        g, u = np.minimum(x[t] @ gate, 0.2), np.clip(x[t] @ up, -0.2, 0.2)
        out[t] += weights[t, k] * ((g / (1 + np.exp(-g)) * u) @ down)
    return out


def inputs(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(tokens)
    ids = torch.stack([torch.randperm(E, generator=gen)[:TOP] for _ in range(tokens)]).int()
    return torch.randn(tokens, H, generator=gen), torch.rand(tokens, TOP, generator=gen), ids


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("expand", [False, True])
def test_experts_equal_the_oracle(tokens: int, expand: bool) -> None:
    spec, tensors, linears = experts()
    kernel = reference.ReferenceExperts(spec, tensors, expand=expand, cached=reference.DecodedCache(1 << 20))
    kernel.prepare()
    assert kernel.packed is not expand
    x, weights, ids = inputs(tokens)
    want = oracle(linears, x.numpy(), weights.numpy(), ids.numpy())
    got = kernel.apply(x, weights, ids)
    assert got.dtype == torch.float32
    assert np.abs(got.numpy() - want).max() < 2e-5 * np.abs(want).max()


def test_tensor_parallel_halves_sum_to_the_whole() -> None:
    rng = np.random.default_rng(9)
    gate, up, down = (random_linear(rng, k, n) for k, n in ((H, 256), (H, 256), (256, H)))
    x, weights, ids = torch.randn(3, H), torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.int64)
    parts = []
    for world in (1, 2):
        total = torch.zeros(3, H)
        for rank in range(world):
            cut = [
                exl3.slice_tp(m, rank, world, axis) if world > 1 else m
                for m, axis in ((gate, "n"), (up, "n"), (down, "k"))
            ]
            t = [
                [torch.from_numpy(np.ascontiguousarray(getattr(m, f))) for f in ("trellis", "suh", "svh")]
                for m in cut
            ]
            tensors = ExpertsTensors(
                *(torch.stack([a, b])[None] for a, b in zip(t[0], t[1], strict=True)),
                *(a[None] for a in t[2]),
            )
            spec = ExpertsSpec("l", 1, H, 256 // world, 1, 8, 4, 4, "mcg", None, torch.float32, False)
            total += reference.ReferenceExperts(
                spec, tensors, expand=False, cached=reference.DecodedCache(0)
            ).apply(x, weights, ids)
        parts.append(total)
    assert torch.allclose(parts[0], parts[1], rtol=0, atol=2e-5 * float(parts[0].abs().max()))


def test_another_ranks_experts_add_nothing() -> None:
    spec, tensors, linears = experts()
    tensors = dataclasses.replace(tensors, expert_map=torch.tensor([-1, 0, -1, 1], dtype=torch.int32))
    kernel = reference.ReferenceExperts(spec, tensors, expand=False, cached=reference.DecodedCache(1 << 20))
    kernel.prepare()
    x, weights = inputs(1)[:2]
    ids = torch.tensor([[0, 3]], dtype=torch.int32)
    want = oracle(linears, x.numpy(), weights.numpy()[:, 1:], np.array([[1]]))
    assert np.abs(kernel.apply(x, weights, ids).numpy() - want).max() < 2e-5 * np.abs(want).max()


def test_cache_is_bounded_and_drops_the_least_recent() -> None:
    pair = (torch.zeros(100), torch.zeros(28))  # 512 bytes
    made: list[int] = []

    def make(key: int) -> tuple[torch.Tensor, torch.Tensor]:
        made.append(key)
        return pair

    cached = reference.DecodedCache(1024)
    for key in (1, 2, 1, 3, 1, 2):
        cached.get((0, key), lambda key=key: make(key))
        assert cached.bytes <= 1024
    assert made == [1, 2, 3, 2]  # 2 was out when it came again, 1 was not
    nothing = reference.DecodedCache(100)
    nothing.get((0, 1), lambda: pair)
    assert nothing.bytes == 0


def test_linear_with_two_rates_side_by_side() -> None:
    rng = np.random.default_rng(3)
    parts = [random_linear(rng, 128, 128, 3, "mcg"), random_linear(rng, 128, 256, 2.5, "mul1")]
    spec = LinearSpec("l", 128, (128, 256), (3, 2.5), ("mcg", "mul1"), 8, torch.float32)
    tensors = LinearTensors(
        *(tuple(torch.from_numpy(getattr(m, name)) for m in parts) for name in ("trellis", "suh", "svh"))
    )
    x = torch.randn(2, 3, 128)
    want = x.numpy().reshape(6, 128) @ np.concatenate([exl3.dense_weight(m) for m in parts], 1)
    for expand in (False, True):
        kernel = reference.ReferenceLinear(
            spec, tensors, expand=expand, cached=reference.DecodedCache(1 << 20)
        )
        kernel.prepare()
        got = kernel.apply(x).numpy().reshape(6, -1)
        assert np.abs(got - want).max() < 2e-5 * np.abs(want).max()


def test_choice_of_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = experts()[0]
    device = torch.device("cpu")
    monkeypatch.delenv("SPARKLOOM_EXL3_BACKEND", raising=False)
    assert backends.select(spec, device) is reference.ReferenceBackend
    monkeypatch.setenv("SPARKLOOM_EXL3_BACKEND", "Reference")
    assert backends.select(spec, device) is reference.ReferenceBackend
    monkeypatch.setenv("SPARKLOOM_EXL3_BACKEND", "cublas")
    with pytest.raises(SparkloomError, match="no such EXL3 back end"):
        backends.select(spec, device)
    monkeypatch.delenv("SPARKLOOM_EXL3_BACKEND")
    monkeypatch.setattr(reference.ReferenceBackend, "refuses", classmethod(lambda cls, spec: "too small"))
    with pytest.raises(SparkloomError) as error:
        backends.select(spec, device)
    assert "reference: too small" in error.value.detail


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({}, options.Options(False, 1 << 30)),
        ({"SPARKLOOM_EXL3_EXPAND": "1", "SPARKLOOM_EXL3_CACHE_MIB": "0"}, options.Options(True, 0)),
        (
            {"SPARKLOOM_EXL3_EXPAND": "false", "SPARKLOOM_EXL3_CACHE_MIB": "64"},
            options.Options(False, 64 << 20),
        ),
    ],
)
def test_options(env: dict[str, str], want: options.Options) -> None:
    assert options.read(env) == want


@pytest.mark.parametrize("env", [{"SPARKLOOM_EXL3_EXPAND": "maybe"}, {"SPARKLOOM_EXL3_CACHE_MIB": "-1"}])
def test_wrong_options_are_named(env: dict[str, str]) -> None:
    with pytest.raises(SparkloomError) as error:
        options.read(env)
    assert error.value.field in env


def test_a_layer_never_meets_the_weights_of_one_that_is_gone() -> None:
    """Keys of the shared cache are never used twice, though Python re-uses the ids of freed objects."""
    from sparkloom.vllm.backends import reference

    assert [next(reference._serials) < next(reference._serials) for _ in range(3)] == [True] * 3

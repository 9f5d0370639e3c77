"""The linear layer: Hadamard, dense weight, staged forward, signs, shards, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from exl3_checkpoints import random_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom import exl3
from sparkloom.errors import SparkloomError


def relative_rms(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - wanted).sum() / np.square(wanted).sum()))


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda s: (128 * s[0], 128 * s[1]))
kinds = st.one_of(
    st.tuples(st.integers(1, 8), st.sampled_from(exl3.CODEBOOKS)),
    st.tuples(st.sampled_from([1.5, 2.5, 3.5]), st.just("mul1")),
)


def test_hadamard_matrix() -> None:
    h = exl3.hadamard_matrix().astype(np.float64)
    assert np.array_equal(h, h.T)
    assert np.allclose(h @ h, np.eye(128), atol=1e-6)
    signs = [[(-1) ** bin(a & b).count("1") for b in (1, 64, 127)] for a in (1, 3, 64, 127)]
    assert np.array_equal(np.sign(h[[1, 3, 64, 127]][:, [1, 64, 127]]), signs)


@given(shapes, st.integers(0, 1), st.integers(0, 99))
@settings(max_examples=20)
def test_hadamard_identities(shape: tuple[int, int], axis: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(shape)
    before = x.copy()
    y = exl3.hadamard(x, axis)
    assert np.array_equal(x, before), "the argument was changed"
    assert np.allclose(exl3.hadamard(y, axis), x, atol=1e-5)
    assert np.square(y).sum() == pytest.approx(np.square(x).sum())
    blocks = x.swapaxes(axis, -1).reshape(-1, 128) @ exl3.hadamard_matrix()
    assert np.allclose(y.swapaxes(axis, -1).reshape(-1, 128), blocks, atol=1e-6)


def test_hadamard_keeps_vectors_whole() -> None:
    one = np.zeros(256, np.float32)
    one[130] = 1
    y = exl3.hadamard(one)
    assert y.dtype == np.float32
    assert not y[:128].any()
    assert np.allclose(np.abs(y[128:]), 1 / np.sqrt(128))
    with pytest.raises(SparkloomError, match="multiple of 128"):
        exl3.hadamard(np.zeros(100))


def test_dense_weight_is_the_formula() -> None:
    linear = random_linear(bits=3, codebook="3inst")
    h = exl3.hadamard_matrix().astype(np.float64)
    hk, hn = np.kron(np.eye(linear.k // 128), h), np.kron(np.eye(linear.n // 128), h)
    inner = exl3.decode(linear.trellis, "3inst").astype(np.float64)
    wanted = np.diag(linear.suh.astype(float)) @ hk @ inner @ hn @ np.diag(linear.svh.astype(float))
    assert exl3.dense_weight(linear).dtype == np.float32
    assert relative_rms(exl3.dense_weight(linear), wanted) < 1e-6


@given(shapes, kinds, st.booleans(), st.integers(0, 99))
@settings(max_examples=25)
def test_staged_forward_agrees_with_the_dense_weight(shape, kind, bias, seed) -> None:
    linear = random_linear(*shape, *kind, seed=seed, bias=bias)
    x = np.random.default_rng(seed).standard_normal((2, 3, linear.k)).astype(np.float16)
    wanted = x.astype(np.float64) @ exl3.dense_weight(linear).astype(np.float64)
    if bias:
        wanted += linear.bias.astype(np.float64)
    found = exl3.forward(linear, x)
    assert found.shape == (2, 3, linear.n)
    assert found.dtype == np.float32
    assert relative_rms(found, wanted) < 2e-3
    assert exl3.forward(linear, x[0, 0]).shape == (linear.n,)


@given(shapes, kinds, st.sampled_from(["n", "k"]), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=25)
def test_shards_make_up_the_whole(shape, kind, axis, world, seed) -> None:
    k, n = (shape[0] * world, shape[1]) if axis == "k" else (shape[0], shape[1] * world)
    linear = random_linear(k, n, *kind, seed=seed, bias=True)
    shards = [exl3.slice_tp(linear, rank, world, axis) for rank in range(world)]
    dense = [exl3.dense_weight(shard) for shard in shards]
    assert np.array_equal(np.concatenate(dense, axis=1 if axis == "n" else 0), exl3.dense_weight(linear))
    x = np.random.default_rng(seed).standard_normal((2, k)).astype(np.float16)
    whole = exl3.forward(linear, x)
    if axis == "n":
        joined = np.concatenate([exl3.forward(shard, x) for shard in shards], axis=1)
    else:
        joined = sum(exl3.forward(s, p) for s, p in zip(shards, np.split(x, world, axis=1), strict=True))
        assert [shard.bias is not None for shard in shards] == [True] + [False] * (world - 1)
    assert np.allclose(joined, whole, rtol=1e-4, atol=1e-4)


def test_shard_axes_by_other_names() -> None:
    linear = random_linear(256, 384)
    for one, other in (("n", "out"), ("n", "column"), ("n", 1), ("k", "in"), ("k", "row"), ("k", 0)):
        world = 3 if one == "n" else 2
        a, b = exl3.slice_tp(linear, 1, world, one), exl3.slice_tp(linear, 1, world, other)
        assert np.array_equal(a.trellis, b.trellis)


@pytest.mark.parametrize(
    ("rank", "world", "axis", "word"),
    [
        (0, 2, "n", "do not split over 2"),
        (0, 4, "k", "do not split over 4"),
        (2, 2, "k", "no such rank"),
        (0, 0, "k", "no such rank"),
        (-1, 2, "k", "no such rank"),
        (0, 2, "x", "no such axis"),
    ],
)
def test_shards_that_cannot_be(rank: int, world: int, axis: str, word: str) -> None:
    with pytest.raises(SparkloomError, match=word):
        exl3.slice_tp(random_linear(256, 128), rank, world, axis)


@pytest.mark.parametrize("codebook", exl3.CODEBOOKS)
def test_tensors_there_and_back(codebook: str) -> None:
    linear = random_linear(codebook=codebook, bias=True)
    tensors = linear.tensors()
    wanted = {"trellis", "suh", "svh", "bias"} | ({codebook} - {"3inst"})
    assert set(tensors) == wanted
    again = exl3.Linear.from_tensors(tensors, "a.b")
    assert again.codebook == codebook
    assert np.array_equal(exl3.dense_weight(again), exl3.dense_weight(linear))
    assert linear.nbytes == sum(t.nbytes for t in tensors.values())


def test_marker_values() -> None:
    assert exl3.marker_value("mcg") == -877912083
    assert exl3.marker_value("mul1") & 0xFFFFFFFF == 0x83DCD12D


@given(st.integers(1, 9), st.integers(0, 99))
def test_signs(words: int, seed: int) -> None:
    packed = np.random.default_rng(seed).integers(-32768, 32768, words).astype(np.int16)
    signs = exl3.unpack_signs(packed)
    for channel, sign in enumerate(signs.tolist()):
        assert sign == (-1 if (int(packed[channel // 16]) >> (channel % 16)) & 1 else 1)
    assert np.array_equal(exl3.pack_signs(signs), packed)


def test_old_files_with_packed_signs() -> None:
    linear = random_linear()
    signed = exl3.Linear(
        linear.trellis, np.sign(linear.suh), np.sign(linear.svh), "mcg"
    )  # as if all scales were 1
    tensors = signed.tensors()
    tensors["su"], tensors["sv"] = exl3.pack_signs(tensors.pop("suh")), exl3.pack_signs(tensors.pop("svh"))
    assert np.array_equal(exl3.dense_weight(exl3.Linear.from_tensors(tensors)), exl3.dense_weight(signed))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"suh": None}, "up.suh"),
        ({"trellis": None}, "up.trellis"),
        ({"mul1": np.array(exl3.marker_value("mul1"), np.int32)}, "up.mul1"),
        ({"mcg": np.array(1, np.int32)}, "up.mcg"),
        ({"mcg": np.array([1.0, 2.0], np.float32)}, "up.mcg"),
        ({"svh": np.zeros(64, np.float16)}, "up.svh.shape"),
        ({"suh": np.zeros(256, np.float32)}, "up.suh"),
        ({"trellis": np.zeros((16, 8, 60), np.int16)}, "up.trellis.shape[2]"),
        ({"trellis": np.zeros((15, 8, 64), np.int16)}, "up.trellis.shape"),
        ({"trellis": np.zeros((16, 8), np.int16)}, "up.trellis"),
        ({"trellis": np.zeros((16, 8, 40), np.int16)}, "up.codebook"),
    ],
)
def test_damaged_linears_name_the_tensor(change: dict, field: str) -> None:
    tensors = {**random_linear().tensors(), **change}
    tensors = {key: value for key, value in tensors.items() if value is not None}
    with pytest.raises(SparkloomError) as error:
        exl3.Linear.from_tensors(tensors, "up")
    assert error.value.field == field
    assert "(linear up)" in error.value.summary
    assert error.value.mend


def test_forward_refuses_other_widths() -> None:
    with pytest.raises(SparkloomError, match="256 channels"):
        exl3.forward(random_linear(), np.zeros((1, 128), np.float16))

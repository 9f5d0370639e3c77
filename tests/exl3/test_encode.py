"""The encoder: error bounds, closed rings, zero channels, determinism, refusals. Few tiles: quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sparkloom import exl3
from sparkloom.cli.main import run
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3 import kernels, viterbi
from sparkloom.exl3.encode import FILL

# Squared error on Gaussian weights: measured 0.0696, 0.0177, 0.0046, 0.00033; the limit is 4^-bits.
BOUNDS = {2: 0.0735, 3: 0.0190, 4: 0.0049, 6: 0.00036}


def gaussian(k: int, n: int, seed: int = 0, scale: float = 0.02) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((k, n)) * scale).astype(np.float32)


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


def search_error(bits: float, name: str, tiles: int = 24) -> float:
    values = exl3.codebook(name).astype(np.float32)
    weights = gaussian(tiles, 256, scale=1) * values.std() * FILL[bits]
    states = viterbi.search(weights, bits, name, threads=1)
    assert np.array_equal(exl3.unpack(exl3.pack(states, bits)), states), "a ring is not closed"
    return nmse(values[states], weights)


@pytest.mark.parametrize("bits", [2, 4, pytest.param(3, marks=pytest.mark.heavy), 6])
def test_error_on_gaussian_tiles(bits: int) -> None:
    error = search_error(bits, "mcg")
    assert 4.0**-bits < error < BOUNDS[bits]


@pytest.mark.heavy
def test_half_rate() -> None:
    assert 4.0**-2.5 < search_error(2.5, "mul1") < 0.0375


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [1, 5, 7, 8, 1.5, 3.5])
def test_error_of_the_other_rates(bits: float) -> None:
    bound = {1: 0.29, 1.5: 0.147, 3.5: 0.0095, 5: 0.0013, 7: 0.0001, 8: 0.000027}[bits]
    assert 4.0**-bits < search_error(bits, "mul1" if bits != int(bits) else "mcg") < bound


@pytest.mark.parametrize("codebook", exl3.CODEBOOKS)
def test_encode_brings_the_weight_back(codebook: str) -> None:
    weight = gaussian(128, 256)
    weight *= np.random.default_rng(1).uniform(0.3, 3, 256).astype(np.float32)
    linear = exl3.encode(weight, 4, codebook, threads=1)
    assert (linear.k, linear.n, linear.bits, linear.codebook) == (128, 256, 4, codebook)
    assert nmse(exl3.dense_weight(linear), weight) < 0.0052


def test_encode_does_not_depend_on_threads_but_on_the_seed() -> None:
    weight = gaussian(128, 128)
    calls: list[tuple[int, int]] = []
    one = exl3.encode(weight, 4, threads=1, progress=lambda done, total: calls.append((done, total)))
    three = exl3.encode(weight, 4, threads=3)
    assert np.array_equal(one.trellis, three.trellis)
    assert np.array_equal(one.suh, three.suh)
    assert calls == [(16, 64), (32, 64), (48, 64), (64, 64)]
    assert not np.array_equal(one.suh, exl3.encode(weight, 4, seed=1).suh)


def test_zero_channels_stay_exactly_zero() -> None:
    """A padded matrix: the last block of inputs and of outputs is half empty."""
    weight = gaussian(256, 256)
    weight[192:] = 0
    weight[:, 192:] = 0
    linear = exl3.encode(weight, 4)
    assert not linear.suh[192:].any()
    assert not linear.svh[192:].any()
    dense = exl3.dense_weight(linear)
    assert not dense[192:].any()
    assert not dense[:, 192:].any()
    # Without the correction of half-empty blocks the codebook would see half the variance there.
    assert nmse(dense, weight) < 0.0052


@pytest.mark.parametrize("scale", [0.0, 1e-7, 1e-4, 30.0, 1e6])
def test_any_size_of_weights(scale: float) -> None:
    weight = gaussian(128, 128, scale=scale)
    dense = exl3.dense_weight(exl3.encode(weight, 4))
    assert np.isfinite(dense).all()
    if scale:
        assert nmse(dense, weight) < 0.0055
    else:
        assert not dense.any()


def test_progress_that_fails_stops_the_work() -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        exl3.encode(gaussian(128, 128), 4, threads=2, progress=fail)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("weight", "word"),
    [
        (np.zeros((128, 100), np.float32), "multiples of 128"),
        (np.zeros((0, 128), np.float32), "multiples of 128"),
        (np.zeros(128, np.float32), "matrix of floats"),
        (np.zeros((128, 128), np.int8), "matrix of floats"),
        (np.full((128, 128), np.nan, np.float32), "NaN or infinity"),
    ],
)
def test_weights_that_cannot_be_encoded(weight: np.ndarray, word: str) -> None:
    with pytest.raises(SparkloomError, match=word):
        exl3.encode(weight, 4)


def test_options_that_cannot_be() -> None:
    for arguments in ((9, "mcg"), (2.5, "mcg"), (4, "other")):
        with pytest.raises(SparkloomError):
            exl3.encode(gaussian(128, 128), *arguments)
    with pytest.raises(SparkloomError, match="at least one thread"):
        exl3.encode(gaussian(128, 128), 4, threads=0)


def test_inner_step_finds_the_cheapest_branch() -> None:
    """The generated step against plain NumPy, uncompiled, for a rate of each of its forms."""
    rng = np.random.default_rng(0)
    for a, b in ((5, 5), (7, 7), (4, 3)):
        size = kernels.shape(a, b)
        namespace: dict = {"np": np}
        exec(kernels.step_source(a, b), namespace)
        values = rng.standard_normal(65536).astype(np.float32)
        natural = values.reshape(size.q, size.p, size.r)
        table = natural.transpose(2, 0, 1) if size.along_p else natural
        edges = 1 << (16 - b)
        cost, new = rng.random(1 << (16 - a)).astype(np.float32), np.empty(edges, np.int32)
        back, tmp = np.empty(edges, np.uint8), np.empty((size.r, size.p), np.int32)
        namespace["step"](table, np.float32(0.3), cost, new, back, tmp)
        states = np.arange(65536).reshape(size.q, edges)
        every = cost[states >> a] + (values[states] - np.float32(0.3)) ** 2
        branch = new & (size.q - 1)
        best = every.min(axis=0)
        taken = every[branch, np.arange(edges)]
        assert np.allclose(taken, best, rtol=2.0 ** (b - 22)), (a, b)
        assert np.allclose(new.view(np.float32), best, rtol=2.0 ** (b - 22))
        where = [eval(kernels.place(a, b), {"edge": edge}) for edge in range(edges)]
        assert np.array_equal(back[where] & (size.q - 1), branch)


@pytest.mark.heavy
def test_compiled_code_is_kept_and_a_damaged_cache_does_no_harm(tmp_path: Path) -> None:
    """In processes of their own: compile, load, load with every cached file overwritten by nonsense."""
    code = (
        "import numpy as np; from sparkloom import exl3;"
        "w = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32);"
        "print(int(exl3.encode(w, 8, threads=1).trellis.astype(np.int64).sum()))"
    )
    sums = []
    for damage in (False, False, True):
        compiled = list(tmp_path.glob("exl3/__pycache__/*.nb[ci]"))
        assert bool(sums) == bool(compiled)
        if damage:
            for file in compiled:
                file.write_bytes(b"nonsense")
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "SPARKLOOM_CACHE": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        )
        sums.append(done.stdout)
    assert len(set(sums)) == 1


def test_bench_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exl3", "bench", "--bits", "4", "--tiles", "8", "--format", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["processor"]
    (row,) = found["rows"]
    assert (row["bits"], row["codebook"], row["threads"], row["tiles"]) == (4, "mcg", 1, 8)
    assert 0.003 < row["nmse"] < 0.006
    assert run(["exl3", "bench", "--bits", "4", "--tiles", "8"]) == Exit.OK
    assert "tiles/s" in capsys.readouterr().out
    assert run(["exl3", "bench", "--bits", "11"]) == Exit.USAGE

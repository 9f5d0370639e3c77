"""Weight-only FP8 beside EXL3: the numbers, the files, what the plug-in reads of them, refusals."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from exl3_checkpoints import write_checkpoint

from sparkloom.cli.main import run
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3 import device, fp8
from sparkloom.exl3.checkpoint import load
from sparkloom.exl3.headers import read_header
from sparkloom.exl3.inspect import inspect
from sparkloom.exl3.options import Options, chosen_patterns
from sparkloom.exl3.plan import make_plan
from sparkloom.exl3.quantize import quantize
from sparkloom.vllm import checkpoint, survey

DENSE = "model.layers.{}.self_attn.{}.weight"
EXPERT = "model.layers.0.mlp.experts.0.gate_proj.weight"


def gaussian(n: int, k: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, k)) * 0.02).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {
        DENSE.format(0, "q_proj"): gaussian(128, 256, 0),
        DENSE.format(0, "o_proj"): gaussian(200, 130, 1),
        DENSE.format(0, "b_proj"): gaussian(4, 256, 2),
        EXPERT: gaussian(128, 128, 3),
        "lm_head.weight": gaussian(256, 128, 4),
        "model.layers.1.mlp.gate_proj.weight": gaussian(128, 128, 5),
        "model.layers.1.mlp.up_proj.weight": gaussian(128, 128, 6),
        "model.norm.weight": np.ones(256, np.float32),
    }
    return write_checkpoint(tmp_path / "source", {"model.safetensors": tensors}, {"model_type": "glm5_next"})


def test_codes_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(50_000) * 10 ** rng.uniform(-4, 2.6, 50_000)).astype(np.float32)
    known = fp8.values()
    known = known[np.isfinite(known)]
    middles = (np.sort(known)[1:] + np.sort(known)[:-1]) / 2  # ties
    x = np.clip(np.concatenate([x, known, middles]), -448, 448).astype(np.float32)
    want = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(fp8.to_e4m3(x), want)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(every, fp8.values(), equal_nan=True)


@pytest.mark.parametrize("scales", ["channel", "block"])
def test_error_scales_and_zeros(scales: str) -> None:
    weight = gaussian(300, 260, 5)
    weight[7] = 0
    weight[9] *= 1e4
    matrix = fp8.encode(weight, scales)
    assert matrix.scale.shape == fp8.scale_shape(300, 260, scales)
    assert not (matrix.scale.view(np.uint32) & 0xFFFF).any()  # bfloat16 holds every scale
    assert np.abs(fp8.values()[matrix.codes]).max() <= 448
    assert not fp8.decode(matrix)[7].any()
    nmse, worst = fp8.error_of(matrix, weight)
    assert nmse < 8e-4
    assert 0 < worst < np.abs(weight).max() / 16
    with pytest.raises(SparkloomError, match="NaN or infinity"):
        fp8.encode(np.full((2, 2), np.nan, np.float32))


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("*.safetensors")}


@pytest.mark.parametrize("scales", ["channel", "block"])
def test_a_mixed_checkpoint_as_the_plug_in_reads_it(source: Path, tmp_path: Path, scales: str) -> None:
    options = Options(
        bits=2,
        include=(EXPERT,),
        fp8=("*.[qo]_proj", "lm_head", "*.1.mlp.*"),
        fp8_scales=scales,
    )
    report = quantize(source, tmp_path / "out", options, threads=1)
    kinds = {note["name"]: note["codebook"] for note in report["linears"]}
    assert sorted(kinds.values()) == [f"fp8 {scales}"] * 5 + ["mcg"]
    assert all(note["nmse"] < 8e-4 for note in report["linears"] if note["codebook"] != "mcg")
    found = checkpoint.read(tmp_path / "out")
    assert {name: (m.k, m.n, m.scales) for name, m in found.fp8.items()} == {
        "model.layers.0.self_attn.q_proj": (256, 128, scales),
        "model.layers.0.self_attn.o_proj": (130, 200, scales),
        "lm_head": (128, 256, scales),
        "model.layers.1.mlp.gate_proj": (128, 128, scales),
        "model.layers.1.mlp.up_proj": (128, 128, scales),
    }
    assert list(found.modules) == ["model.layers.0.mlp.experts.*.gate_proj"]
    seen = survey.survey(tmp_path / "out", 1)
    assert seen["needs"] == ["patches.dense_quantization"]
    said = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert said["fp8"] == {"scales": scales, "matrices": 5}
    assert said["bits"] == 2
    assert said["producer"]["name"] == "sparkloom"  # vLLM reads a name there
    assert not inspect(tmp_path / "out").findings
    # Again, from a run that stopped before its last unit.
    before = digest(tmp_path / "out")
    for path in (tmp_path / "out").glob("*.safetensors"):
        path.unlink()
    quantize(source, tmp_path / "out", options, threads=1)
    assert digest(tmp_path / "out") == before


def test_fp8_alone_and_values(source: Path, tmp_path: Path) -> None:
    quantize(
        source,
        tmp_path / "out",
        Options(bits=4, include=(), fp8=("lm_head",)),
        threads=1,
    )
    header = read_header(tmp_path / "out/model.safetensors")
    entry = header.tensors["lm_head.weight"]
    assert entry.dtype == "F8_E4M3"
    raw = (tmp_path / "out/model.safetensors").read_bytes()[header.data_start :]
    codes = np.frombuffer(raw[entry.start : entry.end], np.uint8).reshape(256, 128)
    scale = header.tensors["lm_head.weight_scale"]
    scales = np.frombuffer(raw[scale.start : scale.end], np.float32).reshape(256, 1)
    assert np.abs(fp8.values()[codes] * scales - gaussian(256, 128, 4)).max() < 0.003
    assert not inspect(tmp_path / "out").findings
    assert survey.survey(tmp_path / "out", 2)["groups"][0]["codebook"] == "fp8 channel"


def test_experts_are_refused_and_old_options_keep_their_digest(source: Path) -> None:
    with pytest.raises(SparkloomError, match="routed experts") as caught:
        make_plan(load(source), Options(bits=4, fp8=("*.experts.*",)))
    assert caught.value.code is Exit.USAGE
    with pytest.raises(SparkloomError, match="kind of FP8 scales"):
        Options(bits=4, fp8_scales="tensor")
    assert "fp8" not in Options(bits=4).as_dict()


def test_presets_and_the_dry_run(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen_patterns(None, None, None) == ("*.experts.*",)
    assert chosen_patterns(None, None, ["lm_head"]) == ()
    arguments = ["--preset", "boost", "--fp8", "*.o_proj", "--dry-run", "--format", "json"]
    code = run(["exl3", "quantize", str(source), str(tmp_path / "out"), *arguments])
    assert code == Exit.OK
    plan = json.loads(capsys.readouterr().out)
    chosen = {linear["key"]: linear["fp8"] for linear in plan["linears"]}
    assert chosen == {
        "model.layers.0.self_attn.q_proj": None,
        "model.layers.0.self_attn.o_proj": "channel",
        "lm_head": None,
        "model.layers.1.mlp.gate_proj": None,
        "model.layers.1.mlp.up_proj": None,
    }
    assert run(["exl3", "quantize", "a", "b", "--preset", "all"]) == Exit.USAGE


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.choose("cpu") == "cpu"
    with pytest.raises(SparkloomError, match="no such device"):
        device.choose("tpu")
    monkeypatch.setattr(device, "unavailable", lambda: "no CUDA device")
    assert device.choose("auto") == "cpu"
    with pytest.raises(SparkloomError, match="no CUDA device"):
        device.choose("cuda")
    monkeypatch.setattr(device, "unavailable", lambda: None)
    assert device.choose("auto") == "cuda"
    assert [device.for_rate("cuda", bits) for bits in (1, 1.5, 2, 3.5, 8)] == [
        "cpu",
        "cpu",
        *["cuda"] * 3,
    ]


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"w.weight": ("F8_E4M3", (8, 8))}, "without scales"),
        (
            {
                "w.weight": ("F8_E4M3", (8, 8)),
                "w.weight_scale": ("F32", (8, 1)),
                "w.weight_scale_inv": ("F32", (1, 1)),
            },
            "two kinds",
        ),
        (
            {"w.weight": ("F8_E4M3", (8, 8)), "w.weight_scale": ("F32", (4, 1))},
            "not float32",
        ),
    ],
)
def test_wrong_scales_are_named(tensors: dict[str, tuple[str, tuple[int, ...]]], says: str) -> None:
    with pytest.raises(SparkloomError, match=says):
        checkpoint.inventory(tensors, {}, "here")

"""`sparkloom exl3 quantize`: what comes out, resuming, refusals. A few tiles only, so that it stays quick."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from exl3_checkpoints import random_linear, tensors_of, write_checkpoint
from safetensors import safe_open

from sparkloom import exl3
from sparkloom.cli.main import run
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3 import viterbi
from sparkloom.exl3.claim import WORK
from sparkloom.exl3.inspect import inspect
from sparkloom.exl3.options import Options
from sparkloom.exl3.quantize import quantize

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EXPERT = "model.layers.{}.mlp.experts.{}.{}"


def bf16(array: np.ndarray) -> np.ndarray:
    """Bit patterns of the nearest bfloat16, as uint16."""
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_bf16(path: Path) -> None:
    """Call the uint16 tensors of a file bfloat16 (NumPy has no such type)."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    head = raw[8 : 8 + length].replace(b'"U16"', b'"BF16"')
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + raw[8 + length :])


def gaussian(n: int, k: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, k)) * 0.02).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two shards in torch's order [outputs, inputs]: three experts, a router, norms, a bf16 dense layer."""
    one = {
        EXPERT.format(0, e, p) + ".weight": gaussian(128, 128, e * 2 + (p == "up_proj")).astype(np.float16)
        for e in range(2)
        for p in ("gate_proj", "up_proj")
    }
    one["model.layers.0.mlp.gate.weight"] = gaussian(5, 128, 9)
    two = {
        EXPERT.format(0, 0, "down_proj") + ".weight": bf16(gaussian(256, 128, 7)),
        "model.layers.0.self_attn.q_proj.weight": bf16(gaussian(128, 128, 8)),
        "model.layers.0.self_attn.q_proj.bias": bf16(gaussian(1, 128, 10)[0]),
        "model.norm.weight": bf16(np.ones(256, np.float32)),
    }
    folder = write_checkpoint(tmp_path / "source", {ONE: one, TWO: two}, {"model_type": "tiny"})
    as_bf16(folder / TWO)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"old weights")
    return folder


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds some closed ring at once: for tests of everything but the error."""

    def search(stream, bits, name, *, threads=None, progress=None):
        words = np.ascontiguousarray(stream[:, : int(8 * bits)], np.float32).view(np.uint16)
        for done in range(16, len(stream) + 1, 16):
            if progress is not None:
                progress(done, len(stream))
        return exl3.unpack(words, bits)

    monkeypatch.setattr(viterbi, "search", search)


def digests(folder: Path) -> dict[str, str]:
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.iterdir()
        if p.suffix != ".json" and p.is_file()
    }


def linear_of(folder: Path, name: str) -> exl3.Linear:
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            keys = [key for key in file.keys() if key.rpartition(".")[0] == name]  # noqa: SIM118
            tensors |= {key.rpartition(".")[2]: file.get_tensor(key) for key in keys}
    return exl3.Linear.from_tensors(tensors, name)


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


def test_whole_checkpoint(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    arguments = ["exl3", "quantize", str(source), str(target), "--bits", "4", "--format", "json"]
    arguments += ["--include", "*.experts.*", "--include", "*.q_proj.weight", "--rate", "*.q_proj=6"]
    assert run(arguments) == Exit.OK
    report = json.loads(capsys.readouterr().out)
    assert json.loads((target / "quantize-report.json").read_text()) == report
    assert report["summary"]["linears"] == 6
    assert 0.003 < report["summary"]["nmse_mean"] < 0.0052
    assert {n["bits"] for n in report["linears"]} == {4, 6}

    found = inspect(target)
    assert found.findings == []
    assert len(found.modules) == 6
    assert {e.name for e in found.native} == {"model.layers.0.mlp.gate.weight", "model.norm.weight"}
    config = json.loads((target / "config.json").read_text())
    assert config["model_type"] == "tiny"
    assert config["quantization_config"]["quant_method"] == "exl3"
    assert config["quantization_config"]["codebook"] == "mcg"
    assert config["quantization_config"]["bits"] == pytest.approx(4 + 2 / 7, abs=1e-4)
    storage = json.loads((target / "quantization_config.json").read_text())["tensor_storage"]
    key = EXPERT.format(0, 0, "down_proj")
    assert storage[key]["stored_tensors"][f"{key}.trellis"] == {
        "shape": [8, 16, 64],
        "n_bytes": 16384,
        "dtype": "torch.int16",
    }
    assert (storage[key]["bits_per_weight"], storage[key]["mcg_multiplier"]) == (4, 0xCBAC1FED)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"][f"{key}.svh"] == TWO
    assert f"{key}.weight" not in index["weight_map"]
    assert (target / "tokenizer.json").is_file()
    assert not (target / "pytorch_model.bin").exists()

    # Torch's order was turned round, bf16 was read, the pair shares suh, the bias came along.
    down = linear_of(target, key)
    assert (down.k, down.n) == (128, 256)
    assert nmse(exl3.dense_weight(down), gaussian(256, 128, 7).T) < 0.0052
    gate, up = (linear_of(target, EXPERT.format(0, 1, p)) for p in ("gate_proj", "up_proj"))
    assert np.array_equal(gate.suh, up.suh)
    assert nmse(exl3.dense_weight(up), gaussian(128, 128, 3).T) < 0.0052
    q = linear_of(target, "model.layers.0.self_attn.q_proj")
    assert q.bits == 6
    assert np.allclose(q.bias, gaussian(1, 128, 10)[0], atol=4e-4)
    with safe_open(source / ONE, "np") as before, safe_open(target / ONE, "np") as after:
        name = "model.layers.0.mlp.gate.weight"
        assert np.array_equal(before.get_tensor(name), after.get_tensor(name))

    # Once more: nothing to do, the same report.
    assert run(arguments) == Exit.OK
    assert json.loads(capsys.readouterr().out) == report


def test_stacked_experts(tmp_path: Path) -> None:
    up_gate = np.stack([gaussian(256, 128, e) for e in range(2)])
    shards = {"model.safetensors": {"layers.0.experts.gate_up_proj": up_gate}}
    target = tmp_path / "out"
    quantize(write_checkpoint(tmp_path / "in", shards, {}), target, Options(bits=4), threads=1)
    assert [m.name for m in inspect(target).modules] == [
        f"layers.0.experts.{e}.{p}" for e in range(2) for p in ("gate_proj", "up_proj")
    ]
    up = linear_of(target, "layers.0.experts.1.up_proj")
    assert nmse(exl3.dense_weight(up), up_gate[1, 128:].T) < 0.0052


@pytest.mark.usefixtures("cheap")
def test_exl3_source_keeps_its_linears_and_gets_modern_scales(tmp_path: Path) -> None:
    tensors = tensors_of(experts__0__up=random_linear())
    for new, old in (("suh", "su"), ("svh", "sv")):
        tensors[f"experts.0.up.{old}"] = exl3.pack_signs(tensors.pop(f"experts.0.up.{new}"))
    tensors["dense_proj.weight"] = gaussian(128, 128, 0)
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors})
    target = tmp_path / "out"
    quantize(source, target, Options(bits=4, include=("*dense*",)))
    found = inspect(target)
    assert [(m.name, m.bits, m.old_signs) for m in found.modules] == [
        ("dense_proj", 4, False),
        ("experts.0.up", 4, False),
    ]
    assert found.findings == []
    old = exl3.Linear.from_tensors({k.rpartition(".")[2]: v for k, v in tensors.items() if "experts" in k})
    assert np.array_equal(exl3.dense_weight(linear_of(target, "experts.0.up")), exl3.dense_weight(old))


def test_resume_after_kill_in_the_middle_of_a_shard(source: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    quantize(source, whole, Options(bits=4), threads=1)

    # A process of its own that is killed without warning while it works on the second pair.
    code = (
        "import sys, time; from pathlib import Path; from sparkloom.exl3.quantize import *;"
        "from sparkloom.exl3.options import Options;"
        "slow = lambda p: (print(p.name, p.done, flush=True), p.done > 140 and time.sleep(60));"
        "quantize(Path(sys.argv[1]), Path(sys.argv[2]), Options(bits=4), threads=1, progress=slow)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(killed)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(line.split()[-1]) > 140:
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not (killed / ONE).exists()
    assert (killed / WORK / f"{ONE}.part").is_file()

    seen: list[str] = []
    report = quantize(source, killed, Options(bits=4), threads=1, progress=lambda p: seen.append(p.name))
    assert digests(killed) == digests(whole)
    assert report["summary"]["linears"] == 5
    first = [name for name in seen if name.endswith("experts.0.gate_proj")]
    assert len(first) == 1, "the finished pair was encoded again"
    assert not list((killed / WORK).glob("*.part"))
    assert not list((killed / WORK).glob("*.journal"))


def stop_at(tiles: int):
    def listen(progress) -> None:
        if progress.done >= tiles:
            raise KeyboardInterrupt

    return listen


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("damage", ["cut", "flipped", "journal", "nothing", "head"])
def test_resume_trusts_only_what_the_journal_proves(damage: str, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(SparkloomError, match="interrupted") as error:
        quantize(source, target, Options(bits=4), progress=stop_at(200))
    assert error.value.code == Exit.INTERRUPTED
    part, journal = target / WORK / f"{ONE}.part", target / WORK / f"{ONE}.journal"
    raw = bytearray(part.read_bytes())
    if damage == "cut":
        part.write_bytes(raw[:-1000])
    elif damage == "flipped":
        raw[-1000] ^= 1
        part.write_bytes(raw)
    elif damage == "head":
        raw[20] ^= 1
        part.write_bytes(raw)
    elif damage == "journal":
        journal.write_text(journal.read_text()[:-40])
    quantize(source, target, Options(bits=4))
    whole = tmp_path / "whole"
    quantize(source, whole, Options(bits=4))
    assert digests(target) == digests(whole)


@pytest.mark.usefixtures("cheap")
def test_finished_shard_that_was_damaged_is_made_again(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    quantize(source, target, Options(bits=4))
    before = digests(target)
    (target / TWO).write_bytes((target / TWO).read_bytes()[:-5])
    (target / ONE).replace(target / WORK / f"{ONE}.part")  # as if stopped before the renaming
    quantize(source, target, Options(bits=4))
    assert digests(target) == before


def test_dry_run_writes_nothing(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["exl3", "quantize", str(source), str(tmp_path / "out"), "--dry-run"]
    assert run([*arguments, "--format", "json"]) == Exit.OK
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["linears"]) == 5
    assert plan["tiles"] == 6 * 64
    assert run(arguments) == Exit.OK
    assert "384 tiles" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


BAD = {
    "bits": (["--bits", "9"], Exit.USAGE, "no such rate"),
    "half rate": (["--bits", "2.5"], Exit.USAGE, "mul1 alone"),
    "codebook": (["--codebook", "mcg2"], Exit.USAGE, "unknown codebook"),
    "pattern": (["--include", "*.nothing"], Exit.USAGE, "no matrix fits"),
    "odd": (["--include", "*.mlp.*"], Exit.INPUT, "no multiples of 128"),
    "rate": (["--rate", "down=x"], Exit.USAGE, "PATTERN=BITS"),
    "rate bits": (["--rate", "down=12"], Exit.USAGE, "no such rate"),
}


@pytest.mark.parametrize("kind", BAD)
def test_options_that_cannot_be(
    kind: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra, code, words = BAD[kind]
    assert run(["exl3", "quantize", str(source), str(tmp_path / "out"), *extra]) == code
    message = capsys.readouterr().err
    assert words in message
    assert "mend:" in message
    assert not (tmp_path / "out").exists()


def test_odd_sizes_can_be_left_native(source: Path) -> None:
    from sparkloom.exl3.checkpoint import load
    from sparkloom.exl3.plan import make_plan

    plan = make_plan(load(source), Options(bits=4, include=("*.mlp.*",), skip_odd=True))
    assert len(plan.targets) == 5
    assert plan.skipped == {
        "model.layers.0.mlp.gate.weight": "[5, 128] is not a multiple of 128 in both dimensions"
    }


@pytest.mark.usefixtures("cheap")
def test_foreign_and_changed_targets(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    arguments = ["exl3", "quantize", str(source), str(target), "--bits", "4"]
    assert run(arguments) == Exit.USAGE
    assert "was not made by" in capsys.readouterr().err
    assert (target / "thesis.txt").read_text() == "mine"
    assert run(["exl3", "quantize", str(source), str(source / "out")]) == Exit.USAGE
    assert "lies in the source" in capsys.readouterr().err

    (target / "thesis.txt").unlink()
    with pytest.raises(SparkloomError, match="interrupted"):
        quantize(source, target, Options(bits=4), progress=stop_at(1))
    assert run([*arguments[:-1], "7"]) == Exit.USAGE
    assert "bits: 4" in capsys.readouterr().err


@pytest.mark.usefixtures("cheap")
def test_two_runs_at_once(source: Path, tmp_path: Path) -> None:
    def second(progress) -> None:
        quantize(source, tmp_path / "out", Options(bits=4))

    with pytest.raises(SparkloomError, match="another run") as error:
        quantize(source, tmp_path / "out", Options(bits=4), threads=1, progress=second)
    assert error.value.code == Exit.RESOURCE


@pytest.mark.usefixtures("cheap")
def test_no_space(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=9))
    with pytest.raises(SparkloomError, match="GiB free") as error:
        quantize(source, tmp_path / "out", Options(bits=4))
    assert error.value.code == Exit.RESOURCE


def test_damaged_sources(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    whole = (source / TWO).read_bytes()
    for data, words in ((whole[:-10], "cut short"), (b"", "safetensors header")):
        (source / TWO).write_bytes(data)
        with pytest.raises(SparkloomError, match=words):
            quantize(source, target, Options(bits=4))
    (source / TWO).unlink()
    with pytest.raises(SparkloomError, match="not there"):
        quantize(source, target, Options(bits=4))
    (source / TWO).write_bytes(whole)
    (source / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(SparkloomError, match="quantized already"):
        quantize(source, target, Options(bits=4))
    assert not target.exists()


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    weight = gaussian(128, 128, 0)
    weight[3, 4] = np.nan
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": {"a.experts.0.up.weight": weight}}, {})
    with pytest.raises(SparkloomError, match="NaN or infinity") as error:
        quantize(source, tmp_path / "out", Options(bits=4))
    assert error.value.field == "a.experts.0.up"

"""`sparkloom exl3 inspect`: what it tells of a good checkpoint, and every kind of damage."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exl3_checkpoints import random_linear, tensors_of, write_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkloom import exl3
from sparkloom.cli.main import run
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.inspect import Inspection, inspect

Shards = dict[str, dict[str, np.ndarray]]


def good() -> Shards:
    return {
        "model-00001-of-00002.safetensors": {
            **tensors_of(layers__0__up=random_linear(), layers__0__gate=random_linear(bias=True)),
            "embed.weight": np.ones((4, 8), np.float32),
        },
        "model-00002-of-00002.safetensors": tensors_of(
            layers__10__up=random_linear(bits=2.5, codebook="mul1"),
            layers__2__up=random_linear(bits=3, codebook="3inst"),
        ),
    }


ONE, TWO = good()


def test_good_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint(tmp_path, good())
    assert run(["exl3", "inspect", str(folder), "--format", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["summary"]["rates"] == {"2.5": 1, "3": 1, "4": 2}
    assert found["summary"]["codebooks"] == {"mcg": 2, "3inst": 1, "mul1": 1}
    assert found["summary"]["bits_per_weight"] == pytest.approx((2 * 4 + 2.5 + 3) / 4)
    assert found["summary"]["native_tensors"] == 1
    names = [m["name"] for m in found["modules"]]
    assert names == ["layers.0.gate", "layers.0.up", "layers.2.up", "layers.10.up"]
    gate = found["modules"][0]
    assert (gate["k"], gate["n"], gate["bits"], gate["bias"], gate["files"]) == (256, 128, 4, True, [ONE])

    assert run(["exl3", "inspect", str(folder)]) == Exit.OK
    text = capsys.readouterr().out
    assert "layers.*.up" in text
    assert "no problems found" in text


def test_one_file_alone(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, good())
    found = inspect(folder / TWO)
    assert len(found.modules) == 2
    assert found.findings == []


def test_old_packed_signs_are_no_problem(tmp_path: Path) -> None:
    tensors = tensors_of(up=random_linear())
    for new, old in (("suh", "su"), ("svh", "sv")):
        tensors[f"up.{old}"] = exl3.pack_signs(tensors.pop(f"up.{new}"))
    found = inspect(write_checkpoint(tmp_path, {"model.safetensors": tensors}))
    assert found.modules[0].old_signs
    assert found.findings == []


def edit(**changes: object) -> Callable[[Shards], None]:
    """Replace tensors of layers.0.up; None removes one."""

    def change(shards: Shards) -> None:
        for suffix, value in changes.items():
            if value is None:
                del shards[ONE][f"layers.0.up.{suffix}"]
            else:
                shards[ONE][f"layers.0.up.{suffix}"] = value

    return change


DAMAGE = {
    "no suh": (edit(suh=None), "exl3.member", "layers.0.up: the tensor .suh is missing"),
    "no svh": (edit(svh=None), "exl3.member", ".svh is missing"),
    "no trellis": (edit(trellis=None), "exl3.member", ".trellis is missing"),
    "scale": (edit(scale=np.ones(1, np.float32)), "exl3.member", ".scale"),
    "native too": (edit(weight=np.ones((2, 2), np.float32)), "exl3.member", "both native"),
    "both markers": (edit(mul1=np.array(1, np.int32)), "exl3.marker", "both markers"),
    "wrong marker": (edit(mcg=np.array(7, np.int32)), "exl3.marker", "must be -877912083, is 7"),
    "marker type": (edit(mcg=np.array(7, np.int64)), "exl3.shape", "int32 scalar"),
    "half rate": (edit(trellis=np.zeros((16, 8, 40), np.int16)), "exl3.marker", "mul1 alone"),
    "width": (edit(trellis=np.zeros((16, 8, 63), np.int16)), "exl3.shape", "fits no rate"),
    "not 128": (edit(trellis=np.zeros((15, 8, 64), np.int16)), "exl3.shape", "k = 240 is no multiple"),
    "flat": (edit(trellis=np.zeros((16, 512), np.int16)), "exl3.shape", "must be int16 [k/16"),
    "type": (edit(trellis=np.zeros((16, 8, 64), np.int32)), "exl3.shape", "must be int16 [k/16"),
    "suh length": (edit(suh=np.zeros(128, np.float16)), "exl3.shape", "must be F16 [256]"),
    "suh type": (edit(suh=np.zeros(256, np.float32)), "exl3.shape", "is F32"),
    "bias": (edit(bias=np.zeros(5, np.float16)), "exl3.shape", "must have 128 values"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_linear(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, check, words = DAMAGE[kind]
    shards = good()
    change(shards)
    folder = write_checkpoint(tmp_path, shards)
    assert run(["exl3", "inspect", str(folder), "--format", "json"]) == Exit.CHECK
    problems = json.loads(capsys.readouterr().out)["problems"]
    mine = [p for p in problems if p["check"] == check and words in p["summary"]]
    assert mine, problems
    assert mine[0]["level"] == "fail"
    assert "layers.0.up" in mine[0]["summary"]
    assert mine[0]["mend"]


def test_missing_and_truncated_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint(tmp_path, good())
    (folder / TWO).unlink()
    whole = (folder / ONE).read_bytes()
    (folder / ONE).write_bytes(whole[:-100])
    assert run(["exl3", "inspect", str(folder)]) == Exit.CHECK
    text = " ".join(capsys.readouterr().out.split())
    assert f"names {TWO} (" in text
    assert f"promises {len(whole)} bytes, it has {len(whole) - 100}" in text


def test_shard_without_a_header_among_good_ones(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, good())
    (folder / TWO).write_bytes(b"\x00" * 4)
    assert [f.check for f in inspect(folder).findings] == ["exl3.header"]


@pytest.mark.parametrize(
    "data", [b"", b"\x05", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b"\x08\0\0\0\0\0\0\0not json", b"<html>" * 9]
)
def test_files_that_are_no_safetensors(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(SparkloomError, match="safetensors header") as error:
        inspect(tmp_path / "a.safetensors")
    assert error.value.code == Exit.INPUT
    assert error.value.file == str(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "I16", "shape": [2, 2], "data_offsets": [0, 6]},
        {"dtype": "X9", "shape": [2, 2], "data_offsets": [0, 8]},
        {"dtype": "I16", "shape": [-2, -2], "data_offsets": [0, 8]},
        {"dtype": "I16", "shape": [4], "data_offsets": [8, 0]},
        {"dtype": "I16", "shape": [4]},
        [],
    ],
)
def test_headers_that_contradict_themselves(entry: object, tmp_path: Path) -> None:
    raw = json.dumps({"a.trellis": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    assert run(["exl3", "inspect", str(tmp_path)]) == Exit.INPUT


def test_nothing_to_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exl3", "inspect", str(tmp_path / "none")]) == Exit.INPUT
    assert "no such file or folder" in capsys.readouterr().err
    assert run(["exl3", "inspect", str(tmp_path)]) == Exit.INPUT
    assert "no safetensors file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "index", ["[", "{}", '{"weight_map": {"a": "../b.safetensors"}}', '{"weight_map": {"a": "b.bin"}}']
)
def test_damaged_index(index: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, good())
    (folder / "model.safetensors.index.json").write_text(index)
    assert run(["exl3", "inspect", str(folder)]) == Exit.INPUT


def test_index_and_shards_disagree(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, good())
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost.weight"] = ONE
    del index["weight_map"]["embed.weight"]
    path.write_text(json.dumps(index))
    levels = {(f.check, str(f.level)) for f in inspect(folder).findings}
    assert levels == {("exl3.index", "fail"), ("exl3.index", "warn")}


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ({"quant_method": "fp8"}, "fail"),
        ({}, "fail"),
        ({"quant_method": "exl3", "bits": 8}, "warn"),
        ({"quant_method": "exl3", "codebook": "mul2"}, "warn"),
        ({"quant_method": "exl3", "bits": 3.4, "codebook": "mcg"}, None),
    ],
)
def test_configuration(said: dict, level: str | None, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, good(), {"quantization_config": said})
    assert [str(f.level) for f in inspect(folder).findings] == [level] * (level is not None)
    strict = run(["exl3", "inspect", str(folder), "--strict"])
    assert strict == {"fail": Exit.CHECK, "warn": Exit.WARN, None: Exit.OK}[level]


def test_exl3_promised_but_absent(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {"model.safetensors": {"a.weight": np.ones((2, 2), np.float32)}})
    assert [f.check for f in inspect(folder).findings] == ["exl3.config"]


def test_tensor_storage(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {"model.safetensors": tensors_of(up=random_linear())})
    storage = {
        "up": {"stored_tensors": {"up.trellis": {"shape": [16, 8, 48]}}},
        "gone": {"stored_tensors": {"gone.trellis": {"shape": [16, 8, 64]}}},
    }
    (folder / "quantization_config.json").write_text(json.dumps({"tensor_storage": storage}))
    summaries = [f.summary for f in inspect(folder).findings]
    assert len(summaries) == 2
    assert "tensor_storage says [16, 8, 48], the file has [16, 8, 64]" in summaries[0]
    assert "gone.trellis" in summaries[1]


def assert_findings_or_error(path: Path) -> None:
    found: Inspection | SparkloomError
    try:
        found = inspect(path)
    except SparkloomError as error:
        found = error
    if isinstance(found, SparkloomError):
        assert found.code == Exit.INPUT
        assert found.mend
    assert json.dumps(found.as_dict())


@given(
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4),
    st.floats(0.02, 1),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_gives_findings_or_one_clear_error(
    tmp_path: Path, changes: list[tuple[float, int]], kept: float
) -> None:
    """Bytes of the header overwritten, the file cut: never a traceback."""
    whole = tmp_path / "whole"
    if not whole.exists():
        write_checkpoint(whole, {"model.safetensors": tensors_of(up=random_linear(128, 128, 1))})
    raw = bytearray((whole / "model.safetensors").read_bytes())
    head = 8 + int.from_bytes(raw[:8], "little")
    for place, value in changes:
        raw[int(place * head)] = value
    (tmp_path / "a.safetensors").write_bytes(raw[: max(1, int(kept * len(raw)))])
    assert_findings_or_error(tmp_path / "a.safetensors")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
entry_like = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["I16", "F16", "X"]) | json_values},
    optional={"shape": json_values, "data_offsets": json_values},
)


@given(
    st.dictionaries(
        st.sampled_from(["a.trellis", "a.suh", "a", ".mcg", "__metadata__"]), entry_like | json_values
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_header_content_gives_findings_or_one_clear_error(tmp_path: Path, content: dict) -> None:
    raw = json.dumps(content).encode()
    (tmp_path / "a.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(64))
    assert_findings_or_error(tmp_path / "a.safetensors")


@given(json_values, json_values)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_configuration_gives_findings(tmp_path: Path, config: object, storage: object) -> None:
    if not (tmp_path / "config.json").exists():
        write_checkpoint(tmp_path, {"model.safetensors": tensors_of(up=random_linear(128, 128, 1))})
    said = [config, {"quant_method": "exl3", "bits": config, "codebook": storage}]
    ledger = [storage, {"stored_tensors": config}, {"stored_tensors": {"up.suh": storage, "x": config}}]
    ledger.append({"stored_tensors": {"up.suh": {"shape": config}}})
    for value, module in itertools.product(said, ledger):
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": value}))
        (tmp_path / "quantization_config.json").write_text(json.dumps({"tensor_storage": {"up": module}}))
        assert json.dumps(inspect(tmp_path).as_dict())

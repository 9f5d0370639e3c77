"""The matrix's pure parts: slimming, packing, rows, comparison rules, runner, receipt."""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpumatrix import fatbin, judge, matrix, receipt, rows, stage
from gpumatrix.rows import Row


def container(*parts: tuple[int, int, bytes]) -> bytes:
    """A fat binary of (kind, capability, payload), entry headers of 64 bytes as nvcc writes them."""
    body = b""
    for kind, arch, payload in parts:
        header = struct.pack("<HHIQ", kind, 0x101, 64, len(payload)) + bytes(12) + struct.pack("<I", arch)
        body += header + bytes(64 - len(header)) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


LIBRARY = (
    b"ELF"
    + container((2, 80, b"A" * 40), (2, 90, b"B" * 50), (2, 100, b"C" * 60), (1, 90, b"P" * 70))
    + b"code with the magic in it: \x50\xed\x55\xba!"
    + container((1, 80, b"Q" * 30), (2, 120, b"D" * 20))
    + b"end"
)


def test_slimming_keeps_the_best_code_and_every_offset() -> None:
    slim = fatbin.slim(LIBRARY, 90)
    assert len(slim) == len(LIBRARY)
    kept = {letter for letter in "ABCPQD" if letter.encode() * 20 in slim}
    assert kept == {"B", "Q"}  # code of 9.0; PTX where no code fits; nothing of 12.0
    assert slim.endswith(b"end")
    assert b"code with the magic in it: \x50\xed\x55\xba!" in slim
    assert fatbin.slim(slim, 90) == slim
    assert [len(c) for c in fatbin.containers(slim)] == [4, 2]


def test_code_of_an_older_major_does_not_count() -> None:
    library = container((1, 80, b"P" * 70), (1, 70, b"O" * 70), (2, 80, b"A" * 40), (2, 120, b"D" * 20))
    assert [letter for letter in "POAD" if letter.encode() * 20 in fatbin.slim(library, 90)] == ["P"]
    assert [letter for letter in "POAD" if letter.encode() * 20 in fatbin.slim(library, 89)] == ["A"]


def test_slimming_to_other_capabilities() -> None:
    assert b"A" * 40 in fatbin.slim(LIBRARY, 89)
    assert b"P" * 70 in fatbin.slim(LIBRARY, 121)  # no code of this major: PTX
    assert b"D" * 20 in fatbin.slim(LIBRARY, 121)
    exact = fatbin.slim(LIBRARY, 90, exact=True)
    assert b"B" * 50 in exact
    assert b"Q" * 30 not in exact


@pytest.mark.parametrize("data", [b"", b"\x50\xed\x55\xba", LIBRARY[:60], b"\x50\xed\x55\xba" * 9])
def test_slimming_leaves_what_is_no_fat_binary(data: bytes) -> None:
    assert fatbin.slim(data, 90) == data


def test_pieces_stay_under_the_limit() -> None:
    sizes = {"vllm": 35, "jit": 45, "wheels": 17, "fa3": 12}
    found = stage.pieces(sizes, 60)
    assert sorted(name for piece in found for name in piece) == sorted(sizes)
    assert all(sum(sizes[name] for name in piece) <= 60 for piece in found)
    assert len(found) == 2
    with pytest.raises(ValueError, match="jit alone"):
        stage.pieces(sizes, 40)


def test_unpacked_site_and_its_patched_twin(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name, text in (("vllm/a.py", "a"), ("vllm/sub/b.py", "b"), ("other/c.py", "c")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    (source / "vllm" / "link.py").symlink_to("a.py")
    inner = tmp_path / "all.txz"
    stage.pack(source, ["vllm", "other"], inner)
    piece = tmp_path / "piece-1.tar"
    with tarfile.open(piece, "w") as tar:
        tar.add(inner, "all.txz")
    changed = tmp_path / "changed"
    (changed / "vllm" / "sub").mkdir(parents=True)
    (changed / "vllm" / "sub" / "b.py").write_text("B")
    (changed / "vllm" / "new.py").write_text("new")
    stage.pack(changed, ["vllm"], tmp_path / "patched.txz")
    site = tmp_path / "site"
    stage.unpack([piece, tmp_path / "patched.txz"], site)
    patched = stage.complete_patched(site)
    assert patched is not None
    assert (site / "vllm/sub/b.py").read_text() == "b"
    seen = {str(p.relative_to(patched)): p.read_text() for p in patched.rglob("*.py")}
    assert seen == {"vllm/a.py": "a", "vllm/sub/b.py": "B", "vllm/new.py": "new", "vllm/link.py": "a"}
    assert (patched / "vllm" / "link.py").is_symlink()
    assert stage.complete_patched(tmp_path / "nowhere") is None


def test_wheels_are_pinned() -> None:
    lines = stage.WHEELS.read_text().split()
    assert "vllm==0.33.0" in lines
    assert all(line.count("==") == 1 for line in lines)
    assert len(lines) == len({line.split("==")[0].lower() for line in lines})


def test_rows_are_sound() -> None:
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    assert not set(names) & {row.group for row in rows.ROWS}
    from gpumatrix import models

    for row in rows.ROWS:
        assert row.model in models.ALL
        assert rows.referred(row) <= set(names), row.name
        assert not row.options or row.plugin, f"{row.name}: options need the plug-in"
        assert json.loads(json.dumps(row.as_dict()))["name"] == row.name
        for check in row.checks:
            assert judge.describe(check)
    options = set().union(*(row.options or {} for row in rows.ROWS))
    from sparkloom.vllm.hooks.install import HOOKS, UNBUILT

    assert options <= {*HOOKS, *UNBUILT, "fair_prefill", "fair_prefill_share", "fair_prefill_max_gap_ms"}


def test_selection_brings_what_is_compared_with() -> None:
    chosen = [row.name for row in rows.select(["exl3-mtp"])]
    assert chosen == ["stock", "exl3-reference", "exl3-cuda", "exl3-graphs", "exl3-mtp"]
    assert {row.group for row in rows.select(["long"])} == {"long"}
    assert rows.select(["*"]) == list(rows.ROWS)
    with pytest.raises(ValueError, match="groups: "):
        rows.select(["nothing-like-it"])


def said(tokens: list[int], shift: float = 0.0, others: dict[int, float] | None = None) -> dict[str, Any]:
    tops = [{str(t): -0.5 + shift, **{str(k): v for k, v in (others or {}).items()}} for t in tokens]
    return {"tokens": tokens, "logprobs": [-0.5 + shift] * len(tokens), "top": tops}


def verdict(check: dict[str, Any], mine: Any, theirs: Any) -> bool:
    records = {"other": {"generations": [theirs]}}
    return bool(judge.judge([check], {"generations": [mine]}, records)[0]["ok"])


def test_rules_of_comparison() -> None:
    same = rows.same
    assert verdict(same("identical", "other"), said([1, 2]), said([1, 2]))
    assert not verdict(same("identical", "other"), said([1, 2], 1e-6), said([1, 2]))
    assert verdict(same("tokens", "other"), said([1, 2], 0.01), said([1, 2]))
    assert not verdict(same("tokens", "other"), said([1, 3]), said([1, 2]))
    assert not verdict(same("tokens", "other"), said([1]), said([1, 2]))
    tie = {3: -0.6}
    assert verdict(same("near", "other"), said([1, 3]), said([1, 2], others=tie))
    assert not verdict(same("near", "other"), said([1, 3]), said([1, 2], others={3: -1.6}))
    assert not verdict(same("near", "other"), said([1, 3]), said([1, 2]))  # not even among the likeliest
    assert not verdict(same("near", "other"), said([1, 2], 0.2), said([1, 2]))  # all positions moved
    assert not verdict(same("near", "other"), said([9, 2]), said([1, 2], others={9: -0.6}))  # nothing shared
    assert verdict(same("near", "other", flips=1), said([1, 3]), said([1, 2]))
    assert not verdict(
        same("tokens", "other", prompts=(1, 2)), said([1]), said([1])
    )  # there is no such prompt


def test_agreement_counts_up_to_the_first_difference() -> None:
    seen = judge.agreement([said([1, 2, 3, 4], others={7: -0.75})], [said([1, 2, 7, 4], 0.1)])
    assert (seen["tokens"], seen["tokens_equal"], seen["prompts_equal"]) == (4, 2, 0)
    assert seen["gaps"] == [0.25]
    assert seen["median"] == pytest.approx(0.1)


def test_rules_of_values() -> None:
    record = {"numbers": {"spec": {"accepted": 40, "per_position": [9, 4, 1]}, "peak": 10.0}}
    others = {"off": {"numbers": {"peak": 12.0}}, "bad": {"error": "died"}}

    def ok(check: dict[str, Any]) -> bool:
        return bool(judge.judge([check], record, others)[0]["ok"])

    assert ok(rows.value("numbers.spec.accepted", ">", 30))
    assert not ok(rows.value("numbers.spec.missing", ">", 30))
    assert ok(rows.EVERY_POSITION)
    assert not ok(rows.value("numbers.spec.per_position", "each>", 1))
    assert ok(rows.compare("numbers.peak", "<", "off", plus=-1))
    assert not ok(rows.compare("numbers.peak", "<", "off", plus=-3))
    assert not ok(rows.compare("numbers.peak", "<", "bad"))
    assert not ok(rows.compare("numbers.peak", "<", "absent"))
    assert ok(rows.own("numbers.peak", "<", "numbers.spec.accepted", times=0.5))
    assert not ok(rows.own("numbers.peak", ">", "numbers.spec.accepted", plus=-30))
    assert not ok(rows.own("numbers.peak", ">", "numbers.spec.none"))
    failed = judge.judge([rows.REPEATS], {"error": "died"}, {})
    assert [one["ok"] for one in failed] == [False]


def test_environment_of_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARKLOOM_PATCHES", '{"pdl_gate": true}')
    by_name = {row.name: row for row in rows.ROWS}
    stock = matrix.environment(by_name["stock"], [tmp_path], None)
    assert stock["VLLM_PLUGINS"] == "none"
    assert not [name for name in stock if name.startswith("SPARKLOOM_")]
    assert str(tmp_path) in stock["PYTHONPATH"].split(":")
    off = matrix.environment(by_name["off"], [], tmp_path)
    assert "SPARKLOOM_PATCHES" not in off
    assert off["SPARKLOOM_KERNELS"] == str(tmp_path)
    gate = matrix.environment(by_name["pdl-gate"], [], None)
    assert json.loads(gate["SPARKLOOM_PATCHES"]) == {"pdl_gate": True}
    told = matrix.filled(by_name["dflash-anchor"].engine, Path("/m"))
    assert told["speculative_config"]["model"] == "/m/draft-anchor"


ENGINE = """
import json, pathlib, sys, time
row = json.loads(pathlib.Path(sys.argv[1]).read_text())
print("log of", row["name"])
if row["name"] == "late": time.sleep(60)
if row["name"] == "dead": sys.exit(3)
pathlib.Path(sys.argv[2]).write_text(json.dumps({"facts": {"repeats": row["name"] == "good"}, "numbers": {}}))
"""


def test_runner_ends_what_hangs_and_reports_what_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.setattr(matrix, "HERE", tmp_path)
    table = [Row(name, "x", checks=[rows.REPEATS], limit=20) for name in ("good", "bad", "dead")]
    table += [Row("late", "x", limit=1), Row("patched", "x", patched=True)]
    found = matrix.run(table, tmp_path / "out", tmp_path / "models", parallel=3)
    assert {name: one["ok"] for name, one in found.items()} == {
        "good": True,
        "bad": False,
        "dead": False,
        "late": False,
        "patched": False,
    }
    assert found["dead"]["record"]["error"] == "the process died"
    assert "within 1 s" in found["late"]["record"]["error"]
    assert found["patched"]["state"] == "skipped"
    assert (tmp_path / "out" / "good.log").read_text() == "log of good\n"


def test_deadline_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.setattr(matrix, "HERE", tmp_path)
    table = [Row("late", "x"), dataclasses.replace(Row("late", "x"), name="never")]
    found = matrix.run(table, tmp_path / "out", tmp_path, parallel=1, deadline=0.5)
    assert "not started" in found["never"]["record"]["error"]
    assert found["late"]["record"]["error"] == "ended: the time was up"


WHERE = {
    "date": "2026-12-01 10:00 UTC",
    "commit": "abc1234",
    "python": "3.12.3",
    "kernel": "6",
    "versions": {"vllm": "0.33.0"},
    "device": "NVIDIA H200",
    "driver": "580",
    "memory": "143771 MiB",
    "capability": "9.0",
    "nvcc": "13.0",
}


def test_receipt(tmp_path: Path) -> None:
    table = [
        Row("a", "does a|b", checks=[rows.REPEATS]),
        Row("b", "does b", checks=[rows.same("tokens", "a"), rows.REPEATS]),
        Row("c", "does c"),
    ]
    long = said(list(range(50)))
    records = {
        "a": {"generations": [long], "facts": {"repeats": True}, "numbers": {"peak": 1.5, "steps": [1]}},
        "b": {"generations": [said([*range(49), 7])], "facts": {"repeats": True}},
        "c": {"error": "ValueError: no\n  File somewhere"},
    }
    part = {"where": WHERE, "rows": receipt.shortened(matrix.verdicts(table, records))}
    later = {"where": {**WHERE, "commit": "def"}, "rows": {"c": {**part["rows"]["c"], "state": "failed"}}}
    page, data = receipt.write([part, later], tmp_path, "A note.")
    assert page.name == "vllm-matrix-nvidia-h200-2026-12-01.md"
    text = page.read_text()
    assert "1 of 3 rows hold" in text
    assert "| `a` | does a|b | holds |" in text
    assert "**not** tokens equal those of a: 49 of 50 tokens, 0 of 1 prompts" in text
    assert "| ValueError: no |" in text
    assert "abc1234, def" in text
    assert "- `a`: peak 1.5" in text
    assert text.endswith("A note.\n")
    stored = json.loads(data.read_text())
    assert stored["rows"]["a"]["record"]["tokens"] == [list(range(50))]
    assert "generations" not in stored["rows"]["a"]["record"]
    good = {**part["rows"]["c"], "state": "ran"}
    assert receipt.merge({"where": WHERE, "rows": {"c": good}}, later)["rows"]["c"] is good
    assert receipt.slug("") == "no-gpu"

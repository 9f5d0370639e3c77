"""A recipe's environment file: every knob is accounted for, nothing is executed, no secret is copied."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.cli.main import run
from sparkloom.cluster.schema import walk
from sparkloom.errors import Exit, SparkloomError
from sparkloom.migrate.convert import convert
from sparkloom.migrate.envfile import parse
from sparkloom.migrate.knobs import FIELDS, SECRETS, kv_bytes, note

ENV = """
# two Sparks
HEAD_IP=192.168.100.1
export WORKER_IP="192.168.100.2"
HEAD_CX7_IF=enp1s0f1np1   # port 1
WORKER_USER=$USER
NCCL_IB_GID_INDEX=3
MAX_MODEL_LEN=262144
MAX_NUM_SEQS=2
GPU_MEM_UTIL=0.85
EXTRA_ARGS='--kv-cache-memory-bytes 11811160064'
SPEC_METHOD=dflash
DFLASH_TOKENS=7
MTP_TOKENS=3
VLLM_API_KEY=sk-very-secret
MODEL_REVISION=main
LANGUAGE_MODEL_ONLY=1
LIMIT_MM={"image":4,"video":0}
MY_OWN=1
"""


def test_every_knob_has_an_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env, out = tmp_path / ".env", tmp_path / "cluster.json"
    env.write_text(ENV)
    assert run(["import-env", str(env), "--out", str(out), "--format", "json"]) == Exit.OK
    text = capsys.readouterr().out
    got = json.loads(text)
    outcome = {r["knob"]: r["outcome"] for r in got["knobs"]}
    assert outcome == {
        "HEAD_IP": "mapped",
        "WORKER_IP": "mapped",
        "HEAD_CX7_IF": "mapped",
        "WORKER_USER": "by hand",
        "NCCL_IB_GID_INDEX": "not needed",
        "MAX_MODEL_LEN": "mapped",
        "MAX_NUM_SEQS": "mapped",
        "GPU_MEM_UTIL": "not needed",
        "EXTRA_ARGS": "mapped",
        "SPEC_METHOD": "by hand",
        "DFLASH_TOKENS": "not needed",
        "MTP_TOKENS": "mapped",
        "VLLM_API_KEY": "by hand",
        "MODEL_REVISION": "refused",
        "LANGUAGE_MODEL_ONLY": "mapped",
        "LIMIT_MM": "not needed",
        "MY_OWN": "unknown",
    }
    cluster = json.loads(out.read_text())
    assert cluster == got["cluster"]
    assert cluster["nodes"][0]["fabric"]["interfaces"] == ["enp1s0f1np1"]
    assert cluster["serving"]["kv_cache_bytes"] == 11811160064
    assert cluster["drafter"] == {"kind": "mtp", "tokens": 3}
    assert cluster["vision"] == {"enabled": False}
    assert "secret" not in text + out.read_text()
    assert run(["import-env", str(env), "--out", str(out)]) == Exit.INPUT
    assert "exists already" in capsys.readouterr().err


def test_the_licence_is_an_explicit_choice() -> None:
    cluster, _ = convert(parse("SPEC_METHOD=dflash\nDFLASH_TOKENS=5"), accept_licence=True)
    assert cluster["drafter"] == {"kind": "dflash2", "accept_non_commercial_licence": True, "tokens": 5}


def test_a_result_that_does_not_validate_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = tmp_path / ".env"
    env.write_text("PORT=99999\n")
    assert run(["import-env", str(env)]) == Exit.CHECK
    assert "api.port" in capsys.readouterr().err


def test_fields_exist_in_the_cluster_file() -> None:
    known = {path for path, _ in walk()}
    for field, _ in FIELDS.values():
        assert re.sub(r"\[\w+\]", "[]", field) in known, field


def base(name: str) -> str:
    """The stem that a `_SUFFIX` shorthand extends."""
    for stem in ("GLM53_ADAPTIVE_K", "GLM53_FAIR_PREFILL", "GLM53_MIXED_PREFILL", "GLM53_KV_OFFLOAD"):
        if name.startswith(stem):
            return stem
    return name


def test_documented_knobs_are_all_known(repo: Path) -> None:
    """Every name in the first column of the tables of docs/knobs.md, `_SUFFIX` shorthands included."""
    text = (repo / "docs/knobs.md").read_text().split("## What the recipes fix")[0]
    missing = []
    for row in re.findall(r"^\| ([A-Z*][^|]*) \|", text, re.MULTILINE):
        names = [n.strip().replace("*", "X").replace("<rank>", "1") for n in row.split(",")]
        first = names[-1] if names[-1][0] != "_" else next(n for n in reversed(names) if n[0] != "_")
        for name in names:
            whole = base(first) + name if name.startswith("_") else name
            if not re.fullmatch(r"\w+", whole):
                continue
            if whole not in FIELDS and whole not in SECRETS and note(whole) is None:
                missing.append(whole)
    assert not missing


@given(st.text(max_size=200))
def test_any_text_parses_or_names_its_line(text: str) -> None:
    try:
        parsed = parse(text)
    except SparkloomError as error:
        said = error.summary
    else:
        convert(parsed, False)
        said = "line 0"
    assert re.search(r"line \d+", said)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--kv-cache-memory-bytes 5", 5),
        ("--x --kv-cache-memory-bytes=7", 7),
        ("--x", None),
        ("'", None),
        ("--kv-cache-memory-bytes", None),
    ],
)
def test_kv_bytes(text: str, value: int | None) -> None:
    assert kv_bytes(text) == value

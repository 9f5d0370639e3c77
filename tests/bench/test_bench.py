"""Benchmark against a server with known timing; statistics, verdicts, report, command line."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.bench import counters, export, host, protocol, report, stats, verdict, workloads
from sparkloom.bench.client import Server
from sparkloom.bench.receipt import measure
from sparkloom.cli.main import run
from sparkloom.errors import Exit, SparkloomError


def short(**kw: Any) -> protocol.Settings:
    base: dict[str, Any] = {
        "runs": 4,
        "tokens": 12,
        "lengths": (64, 128),
        "streams": (1, 2),
        "workloads": ("prose", "code"),
        "text": "salted",
        "idle_seconds": 0.2,
    }
    return protocol.Settings(**{**base, **kw})


def receipt_of(url: str, families: list[str], settings: protocol.Settings) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with Server(url) as server:
            return await measure(server, families, settings, lambda _: None)

    return asyncio.run(go())


def test_known_timing_is_read_back(clockwork: Any) -> None:
    """12 tokens, the first after 50 ms, then one each 10 ms: no text can come before its time, and the rate
    follows from first and last text."""
    got = receipt_of(clockwork.url, ["decode"], short())
    case = got["results"]["decode"]["prose"]
    assert case["decode_tps"]["n"] == 4
    for run_ in case["runs"]:
        assert run_["ttft_s"] >= 0.049
        assert run_["total_s"] >= 0.049 + 11 * 0.01
        assert run_["decode_tps"] == pytest.approx(11 / (run_["total_s"] - run_["ttft_s"]), rel=1e-3)
    first = case["runs"][0]
    assert first["acceptance"] == {
        "rate": 0.5,
        "tokens_per_step": 2.5,
        "per_position": [0.75, 0.5, 0.25],
        "steps": 4.0,
    }
    assert first["ms_per_step"] == pytest.approx(1000 * (first["total_s"] - first["ttft_s"]) / 4, abs=0.01)


def test_all_families_and_the_page(clockwork: Any, tmp_path: Path) -> None:
    got = receipt_of(clockwork.url, list(protocol.FAMILIES), short(runs=1, tokens=4))
    assert json.loads(json.dumps(got)) == got or got["settings"]["lengths"] == (64, 128)
    assert set(got["results"]["prefix"]) >= {"cold", "warm", "edit-10", "edit-50", "edit-90", "branch"}
    assert got["results"]["concurrency"]["2"]["aggregate_tps"] > 0
    page = report.render(got)
    assert page.count("<svg") == 4
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert {row["streams"] for row in export.sparkdash(got)} == {1, 2}
    assert "pp64" in export.benchy(got)


def test_cache_hits_spoil_a_cold_prefill(clockwork: Any) -> None:
    clockwork.cached_share = 0.5
    got = receipt_of(clockwork.url, ["prefill"], short())
    assert got["results"]["prefill"]["salted-64"]["zero_hits"] is False
    assert any("not cold" in line for line in got["obstacles"])


def test_requests_of_others_are_seen_by_the_counter(clockwork: Any) -> None:
    """Somebody else's tokens between our runs: nobody runs at the end, the counter tells all the same."""
    got = receipt_of(clockwork.url, ["decode"], short(runs=1))
    assert not got["busy"]
    assert got["counters"]["generation_tokens"] == got["counters"]["own_generation_tokens"]
    clockwork.foreign = 5
    got = receipt_of(clockwork.url, ["decode"], short(runs=1))
    assert got["busy"]
    assert "the server served other requests during the run" in got["obstacles"]


def test_both_nodes_as_their_agent_sees_them() -> None:
    from sparkloom.bench.nodes import Nodes

    def status(free: int, watts: float, running: int) -> dict[str, Any]:
        host = {"mem_available": free, "gpu": {"power_w": watts, "clock_mhz": 2100.0, "temperature_c": 60.0}}
        rows = [{"name": "a", "facts": {"host": host}}, {"name": "b", "facts": {}}, {"name": "c"}]
        return {"nodes": rows, "engine": {"running": running}}

    pair = Nodes()
    for document in (status(9, 90.0, 1), status(5, 80.0, 1), status(7, 10.0, 0), {"nodes": None}):
        pair.take(document)
    assert pair.as_dict()["a"] == {
        "min_mem_available_bytes": 5,
        "sm_mhz": [2100.0, 2100.0],
        "watts": [10.0, 90.0],
        "celsius": [60.0, 60.0],
    }
    assert pair.as_dict()["b"]["min_mem_available_bytes"] is None
    assert not pair.clamps  # 10 W, but nothing ran
    pair.take(status(5, 14.0, 2))
    assert pair.clamps == {"a draws 14 W under load: take off AC power"}


def test_agents_page_goes_into_receipt_and_report(clockwork: Any, tmp_path: Path) -> None:
    words = ["bench", "decode", "--url", clockwork.url, "--runs", "1", "--tokens", "4"]
    words += ["--workloads", "prose", "--out", str(tmp_path), "--agent", clockwork.url]
    assert run(words) == Exit.OK
    got = json.loads((tmp_path / "receipt.json").read_text())
    assert got["watch"]["nodes"]["spark-a"]["min_mem_available_bytes"] == 3 << 30
    assert "node spark-a" in (tmp_path / "report.html").read_text()
    words[-1] = "http://127.0.0.1:9"
    assert run(words) == Exit.OK
    got = json.loads((tmp_path / "receipt.json").read_text())
    assert any("never answered" in line for line in got["obstacles"])


def test_busy_server_is_refused(clockwork: Any) -> None:
    clockwork.running = 3
    with pytest.raises(SparkloomError, match="still serves 3 other requests") as caught:
        receipt_of(clockwork.url, ["decode"], short())
    assert caught.value.code == Exit.CHECK


def test_command_writes_receipt_and_refuses_to_publish_a_short_run(
    clockwork: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clockwork.key = "sk-secret"
    (tmp_path / "key").write_text("sk-secret\n")
    words = [
        "bench",
        "decode",
        "--url",
        clockwork.url,
        "--runs",
        "1",
        "--tokens",
        "4",
        "--out",
        str(tmp_path),
    ]
    words += ["--workloads", "prose", "--api-key-file", str(tmp_path / "key"), "--publish"]
    assert run(words) == Exit.CHECK
    assert "short run" in capsys.readouterr().err
    names = ("receipt.json", "report.html", "sparkdash.json", "benchy.md")
    assert all((tmp_path / n).stat().st_size > 0 for n in names)
    assert "sk-secret" not in "".join((tmp_path / n).read_text() for n in names)


def test_missing_key_says_so(clockwork: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clockwork.key = "sk-secret"
    assert run(["bench", "decode", "--url", clockwork.url, "--out", str(tmp_path)]) == Exit.RANK
    assert "--api-key-file" in capsys.readouterr().err


def test_nobody_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = ["bench", "agent", "--url", f"http://127.0.0.1:{port}", "--out", str(tmp_path)]
    assert run(words) == Exit.NETWORK
    assert "no answer from the server" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["", "a", "0", "1,,2", "-3"])
def test_bad_lists_are_usage_errors(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "all", f"--streams={bad}"]) == Exit.USAGE
    capsys.readouterr()


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_summary_is_ordered_and_repeatable(values: list[float]) -> None:
    one = stats.summarise(values, draws=50)
    assert one is not None
    assert one.minimum <= one.low <= one.high <= one.maximum
    assert one == stats.summarise(values, draws=50)


def test_a_a_of_equal_runs_is_zero_and_of_drift_is_not() -> None:
    assert stats.a_a([5.0] * 10) == 0
    assert stats.a_a([1.0, 2.0] * 5) == pytest.approx(0.5)
    assert stats.a_a([1.0]) is None


@given(st.text(max_size=400))
def test_any_metrics_text_parses(text: str) -> None:
    counters.parse(text)


@given(st.text(max_size=200))
def test_any_smi_text_parses(text: str) -> None:
    host.parse_smi(text)


def test_smi_rows_and_clamp() -> None:
    text = "NVIDIA GB10, 507, 14.1, 61, 96, 580.126.09\nNVIDIA GB10, [N/A], [N/A], 40, 0, 580.126.09\n"
    first, second = host.parse_smi(text)
    assert "507 MHz" in (host.clamped(first) or "")
    assert second.sm_mhz is None
    assert host.clamped(second) is None


def test_salted_texts_share_no_beginning() -> None:
    starts = {workloads.filler(50, salt)[:24] for salt in range(200)}
    assert len(starts) == 200
    assert abs(len(workloads.filler(1000, 1).split()) - 1000) < 30
    assert workloads.edited("a b c d", 0.5, 7) == "a b edit7 d"


def test_bands_have_source_and_date_and_judge_only_their_hardware() -> None:
    bands = verdict.load_bands()
    assert all({"source", "date", "low", "high", "metric", "gpu", "model"} <= set(b) for b in bands)
    assert all(b["low"] < b["high"] for b in bands)
    results = {"decode": {"prose": {"decode_tps": {"median": 40.0}}}}
    on_spark = {
        "server": {"model": "GLM-5.3-Flash-EXL3"},
        "host": {"gpus": [{"name": "NVIDIA GB10"}]},
        "results": results,
    }
    assert [v["verdict"] for v in verdict.judge(on_spark, bands)] == ["within"]
    elsewhere = {**on_spark, "host": {"gpus": []}}
    assert [v["verdict"] for v in verdict.judge(elsewhere, bands)] == ["not comparable"]

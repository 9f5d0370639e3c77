"""Raw RDMA rates: the command per rail, the parser, the verdict, and a stub in place of perftest."""

from __future__ import annotations

import json

import pytest

from sparkloom.cli.main import run as sparkloom
from sparkloom.commands import MISSING, TIMED_OUT, Answer
from sparkloom.fabric import Rail
from sparkloom.fabric.perftest import argv, judge, parse_rate, run
from sparkloom.findings import Level

RAILS = [
    Rail("enp1s0f0np0", "rocep1s0f0", "10.0.0.1", 3, "g", "RoCE v2", 9000, 4096, True, "200 Gb/sec"),
    Rail("enP2p1s0f0np0", "roceP2p1s0f0", "10.0.1.1", 5, "g", "RoCE v2", 9000, 4096, True, "200 Gb/sec"),
]
TABLE = """
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    65000            0.00               {rate}              0.013021
---------------------------------------------------------------------------------------
"""


def test_each_rail_has_its_device_index_and_port():
    first, second = (argv(r, i, peer="10.0.0.2", message=4096, seconds=5) for i, r in enumerate(RAILS))
    assert first[:5] == ["ib_write_bw", "-d", "rocep1s0f0", "-x", "3"]
    assert first[-1] == second[-1] == "10.0.0.2"
    assert second[4] == "5"
    assert first[first.index("-p") + 1] != second[second.index("-p") + 1]
    assert argv(RAILS[0], 0, peer=None, message=1, seconds=1)[-2] == "-p"


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        (Answer(0, TABLE.format(rate="109.33"), ""), Level.ok, "109.3 Gb/s"),
        (Answer(0, TABLE.format(rate="55.10"), ""), Level.warn, "below"),
        (Answer(0, TABLE.format(rate="13.02"), ""), Level.fail, "raw RDMA is broken"),
        (Answer(0, "nothing", ""), Level.fail, "no result"),
        (Answer(1, "", "Couldn't connect"), Level.fail, "no result"),
        (Answer(TIMED_OUT, "", ""), Level.fail, "did not come"),
        (Answer(MISSING, "", ""), Level.warn, "not installed"),
    ],
)
def test_rates_are_judged(answer, level, words):
    finding = judge(RAILS[0], answer)
    assert finding.level is level
    assert words in finding.summary
    assert finding.mend or level is Level.ok


def test_both_rails_are_measured_at_once(tmp_path, monkeypatch):
    stub = tmp_path / "ib_write_bw"
    stub.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'END'\n{TABLE.format(rate='108.00')}\nEND\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    rates, findings = run(RAILS, ["10.0.0.2", "10.0.1.2"], seconds=1)
    assert [(r.rdma, r.gbps) for r in rates] == [("rocep1s0f0", 108.0), ("roceP2p1s0f0", 108.0)]
    assert {f.level for f in findings} == {Level.ok}


def test_without_rails_nothing_is_run(tmp_path, capsys):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 99999999 kB\nMemFree: 99999999 kB\nMemAvailable: 99999999 kB\n")
    args = ["--run", "--address", "203.0.113.77", "--meminfo", str(info), "--format", "json"]
    assert sparkloom(["fabric", "bandwidth", *args]) == 3
    out = json.loads(capsys.readouterr().out)
    assert "rates" not in out
    assert parse_rate("") is None

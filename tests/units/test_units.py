"""Unit files: what systemd itself says of them, and the facts that must stand in them."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from sparkloom.cli.main import run
from sparkloom.errors import SparkloomError
from sparkloom.units import UnitNeeds, facts, render

MAX_EXPOSURE = 2.5  # what docs/agent.md states, with a little room for other versions of systemd


def needs(**changes: object) -> UnitNeeds:
    values = {
        "exec": "/usr/bin/sparkloom",
        "cluster": "/etc/sparkloom/cluster.json",
        "node": "spark-a",
        "agent_key_file": "/etc/sparkloom/agent.key",
    }
    return UnitNeeds(**{**values, **changes})  # type: ignore[arg-type]


def cluster_file(folder: Path, **api: object) -> Path:
    nodes = [
        {"name": "spark-a", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
        {"name": "spark-b", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
    ]
    path = folder / "cluster.json"
    path.write_text(json.dumps({"schema_version": 1, "nodes": nodes, "api": api}))
    return path


def test_the_agent_unit_carries_what_an_engine_on_a_spark_needs() -> None:
    """P27 (start limits), P34 (starts at boot), P36 (OOM score)."""
    unit = render(needs())["sparkloom-agent.service"]
    for line in (
        "Type=notify",
        "WatchdogSec=60",
        "LimitMEMLOCK=infinity",
        "OOMScoreAdjust=-500",
        "LogRateLimitBurst=500",
        "StartLimitBurst=5",
        "StartLimitIntervalSec=900",
        "Restart=always",
        "RestartPreventExitStatus=2 4",
        "LoadCredential=agent.key:/etc/sparkloom/agent.key",
        "ExecStart=/usr/bin/sparkloom agent /etc/sparkloom/cluster.json --node spark-a",
        "WantedBy=multi-user.target",
    ):
        assert line in unit.splitlines()
    start, service = unit.index("[Unit]"), unit.index("[Service]")
    assert start < unit.index("StartLimitBurst") < service  # systemd ignores it elsewhere


def test_no_unit_restarts_a_container_or_carries_a_key() -> None:
    """P27: never a restart policy of a container."""
    for name, text in render(needs(api_key_file="/etc/sparkloom/api.key")).items():
        assert "podman" not in text, name
        assert "docker" not in text, name
        assert "VLLM_API_KEY" not in text, name
        assert "@" not in text.replace("@system-service", "").replace("@privileged", "").replace("@chown", "")


def test_the_api_key_is_a_credential_only_where_there_is_one() -> None:
    with_key = render(needs(api_key_file="/etc/sparkloom/api.key"))["sparkloom-agent.service"]
    assert "LoadCredential=api.key:/etc/sparkloom/api.key" in with_key
    assert "LoadCredential=agent.key:/etc/sparkloom/agent.key" in with_key
    assert "api.key" not in render(needs())["sparkloom-agent.service"]


def test_no_health_check_sits_on_a_worker_unit() -> None:
    """P31: A headless worker has no HTTP: a probe of it would call it unhealthy for ever."""
    for text in render(needs(node="spark-b")).values():
        assert "health" not in text.replace("unhealthy", "")
        assert "8888" not in text


def test_the_clock_cap_can_be_left_out() -> None:
    assert "-lgc 300,1800" in render(needs(clock_max=1800))["sparkloom-clocks.service"]
    assert "sparkloom-clocks.service" not in render(needs(clock_max=None))


@pytest.mark.parametrize(
    ("field", "value"),
    [("node", "a b"), ("cluster", "/etc/x\nExecStart=/bin/sh"), ("exec", "sparkloom"), ("node", "%i")],
)
def test_values_that_would_change_the_unit_are_refused(field: str, value: str) -> None:
    with pytest.raises(SparkloomError) as caught:
        needs(**{field: value})
    assert caught.value.field == field


def test_facts_are_plain_enough_for_other_renderers() -> None:
    for unit in facts()["units"].values():
        for section, body in unit.items():
            if section == "with_api_key":
                continue
            for value in body.values():
                assert isinstance(value, str | bool) or all(isinstance(v, str) for v in value)


def write_verifiable(folder: Path) -> list[Path]:
    """The units with a program that exists, as `systemd-analyze verify` looks for it."""
    program = folder / "sparkloom"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    files = []
    for name, text in render(needs(exec=str(program), user="root", group="root")).items():
        path = folder / name
        path.write_text(text.replace("/usr/bin/nvidia-smi", "/bin/true"))
        files.append(path)
    return files


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """P34: `systemd-analyze verify` on the rendered units."""
    files = write_verifiable(tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, files)],
        capture_output=True,
        text=True,
    )
    ours = [line for line in done.stderr.splitlines() if "sparkloom" in line]
    assert done.returncode == 0, done.stderr
    assert not ours, "\n".join(ours)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_stated_security_score_holds(tmp_path: Path) -> None:
    agent = next(p for p in write_verifiable(tmp_path) if p.name == "sparkloom-agent.service")
    agent.write_text(agent.read_text().replace("User=root\nGroup=root", "User=sparkloom\nGroup=sparkloom"))
    command = ["systemd-analyze", "security", "--offline=yes", "--json=short", str(agent)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze knows no --offline")
    plain = subprocess.run([c for c in command if c != "--json=short"], capture_output=True, text=True)
    verdict = next(line for line in plain.stdout.splitlines() if "Overall exposure" in line)
    score = float(verdict.split(":")[-1].split()[0])
    assert score <= MAX_EXPOSURE, verdict


def test_the_command_writes_every_file_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cluster_file(tmp_path, key_file="/etc/sparkloom/api.key")
    args = [
        "units",
        str(path),
        "--node",
        "spark-a",
        "--out",
        str(tmp_path / "out"),
        "--exec",
        "/bin/sparkloom",
    ]
    assert run([*args, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(Path(p).is_file() for p in told["files"])
    assert "api.key" in (tmp_path / "out/sparkloom-agent.service").read_text()
    worker = [a if a != "spark-a" else "spark-b" for a in args]
    assert run(worker) == 0
    assert "api.key" not in (tmp_path / "out/sparkloom-agent.service").read_text()


def test_an_unknown_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cluster_file(tmp_path)
    assert run(["units", str(path), "--node", "spark-c", "--out", str(tmp_path / "out")]) == 4
    assert "known: spark-a, spark-b" in capsys.readouterr().err

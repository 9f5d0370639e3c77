"""systemd itself reads the rendered units; promtool reads the alert rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nixlab import HERE, REPO, environment, need_store

GOLDEN = HERE / "golden"
UNITS = sorted(path for path in GOLDEN.rglob("sparkloom-*") if path.suffix in (".service", ".path"))


@pytest.mark.parametrize("host", sorted({path.parent.name for path in UNITS}))
def test_systemd_accepts_the_units(host: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    names = []
    for path in UNITS:
        if path.parent.name == host:
            # Programs of the store are not on this machine; the rest of the text is what NixOS writes.
            text = re.sub(r"/nix/store/\.\.\.-\S+", "/bin/true", path.read_text())
            (tmp_path / path.name).write_text(text)
            names.append(str(tmp_path / path.name))
    for wanted in ("sparkloom-weights.service", "sparkloom-clocks.service", "sparkloom-hygiene.path"):
        if not (tmp_path / wanted).exists():
            (tmp_path / wanted).write_text(
                (GOLDEN / "spark-head" / wanted).read_text().replace("/nix", "/bin")
            )
    result = subprocess.run(
        [analyze, "verify", "--man=no", *names],
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    complaints = [
        line
        for line in result.stderr.splitlines()
        # What this machine lacks is no fault of the text.
        if str(tmp_path) in line and not re.search(r"not executable|Failed to prepare filename", line)
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    "path", [p for p in UNITS if p.suffix == ".service"], ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_services_are_limited(path: Path) -> None:
    text = path.read_text()
    if path.name == "sparkloom-agent.service":
        for line in (
            "Type=notify",
            "LimitMEMLOCK=infinity",
            "LoadCredential=agent.key:/etc/sparkloom/agent.key",
        ):
            assert line in text
        assert "StartLimitBurst=" in text
        assert "StartLimitIntervalSec=" in text
        assert int(re.search(r"TimeoutStopSec=(\d+)", text)[1]) >= 30  # type: ignore[index]
        assert re.search(r"OOMScoreAdjust=-\d+", text)
        assert re.search(r"^BindsTo=.*enp1s0f0np0\.device", text, re.M)
    if path.parent.name != "with-oci":
        assert "NoNewPrivileges=true" in text
        assert "ProtectSystem=strict" in text


def rules() -> dict[str, Any]:
    """The alert rules as data."""
    need_store()
    out = subprocess.run(
        ["nix-instantiate", "--eval", "--strict", "--json", str(REPO / "modules/monitoring/rules.nix")],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    found: dict[str, Any] = json.loads(out.stdout)
    return found


def promtool(*arguments: str, cwd: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    result = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=cwd, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(rules()))
    promtool("check", "rules", "rules.json", cwd=tmp_path)


def case(name: str, series: dict[str, str], at: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """One promtool case: with these series the alert fires at `at` (labels), or does not (None)."""
    rule = next(r for group in rules()["groups"] for r in group["rules"] if r["alert"] == f"Sparkloom{name}")
    alerts = [] if labels is None else [{"exp_labels": {**labels, "severity": rule["labels"]["severity"]}}]
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": f"Sparkloom{name}", "exp_alerts": alerts}],
    }


def test_alerts_fire_when_they_must_and_only_then(tmp_path: Path) -> None:
    gib = 1 << 30
    memory = 'sparkloom_host_memory_available_bytes{node="spark-head"}'
    cases = [
        case(
            "AgentDown",
            {'up{job="sparkloom",instance="a"}': "0x10"},
            "5m",
            {"job": "sparkloom", "instance": "a"},
        ),
        case("AgentDown", {'up{job="sparkloom",instance="a"}': "1x10"}, "5m"),
        case("NotReady", {"sparkloom_ready": "0x60"}, "45m", {}),
        # A normal start takes minutes and is no alarm.
        case("NotReady", {"sparkloom_ready": "0x20 1x40"}, "45m"),
        case("HostMemoryLow", {memory: f"{gib}x20"}, "10m", {"node": "spark-head"}),
        case("HostMemoryLow", {memory: f"{6 * gib}x20"}, "10m"),
        # A long prompt computes for minutes, and an idle engine does not move: neither is a hang.
        case(
            "NoProgress",
            {"sparkloom_progress_age_seconds": "300x10", "sparkloom_requests_running": "0x10"},
            "5m",
        ),
        case(
            "NoProgress",
            {"sparkloom_progress_age_seconds": "300x10", "sparkloom_requests_running": "2x10"},
            "5m",
            {},
        ),
        case(
            "RankDown",
            {'sparkloom_rank_alive{node="spark-worker"}': "0x20", "sparkloom_ready": "1x20"},
            "10m",
            {"node": "spark-worker"},
        ),
        case(
            "RankDown",
            {'sparkloom_rank_alive{node="spark-worker"}': "0x20", "sparkloom_ready": "0x20"},
            "10m",
        ),
        case("Restarting", {'sparkloom_restarts_total{cause="rank-exit"}': "0+1x60"}, "50m", {}),
        case("Restarting", {'sparkloom_restarts_total{cause="operator"}': "0x30 1x30"}, "50m"),
    ]
    # Annotations carry live values; only that the alert fires is compared.
    plain = rules()
    for group in plain["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations")
    (tmp_path / "rules.json").write_text(json.dumps(plain))
    (tmp_path / "test.json").write_text(
        json.dumps({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": cases})
    )
    promtool("test", "rules", "test.json", cwd=tmp_path)


def names(text: str) -> set[str]:
    """Names of this project's metrics in a query."""
    return set(re.findall(r"\bsparkloom_[a-z_]+", text))


def test_rules_and_dashboard_use_metrics_that_the_agent_has() -> None:
    source = REPO / "python/src/sparkloom/agent/export.py"
    if not source.exists():
        pytest.skip("the agent's metrics are not in this tree")
    text = source.read_text()
    known = set(re.findall(r'"(sparkloom_[a-z_]+)"', text))
    known |= {f"sparkloom_{name}" for name in re.findall(r'(?:gauge|counter)\("([a-z_]+)"', text)}
    used: set[str] = set()
    for group in rules()["groups"]:
        for rule in group["rules"]:
            used |= names(rule["expr"])
            assert rule["annotations"]["mend"], rule["alert"]
    board = json.loads((REPO / "modules/monitoring/dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            used |= names(target["expr"])
    assert {name.removesuffix("_total") for name in used} <= known


def test_dashboard_is_made_for_unified_memory() -> None:
    board = json.loads((REPO / "modules/monitoring/dashboard.json").read_text())
    text = json.dumps(board).lower()
    assert "framebuffer_used" not in text
    assert "dcgm_fi_dev_fb" not in text
    assert "sparkloom_host_memory_available_bytes" in text
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in board["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert all(x + w <= 24 for x, _, w, _ in places)

"""The shipped hosts evaluate whole, and what they render is what the golden files show."""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from golden_check import readable
from nixlab import HERE, facts

pytestmark = pytest.mark.heavy  # one evaluation of five systems, 10 s of one core

GOLDEN = HERE / "golden"


def rendered(system: dict[str, Any]) -> dict[str, str]:
    """File name -> content of what one system renders."""
    files = {name: readable(text) for name, text in {**system["units"], **system["networks"]}.items()}
    files["cluster.json"] = json.dumps(system["cluster"], indent=2) + "\n"
    keys = ("firewall", "sysctl", "kernel_params", "user", "login")
    machine = {key: system[key] for key in keys}
    machine["kernel_modules"] = [m for m in system["kernel_modules"] if m.startswith(("mlx5", "ib_", "rdma"))]
    files["machine.json"] = json.dumps(machine, indent=2, sort_keys=True) + "\n"
    if system["gateway"]:
        files["gateway.conf"] = system["gateway"]
    return files


def all_files() -> dict[str, str]:
    """Every golden file's path under golden/ and its present content."""
    found = facts("hosts")
    files = {
        f"{host}/{name}": text
        for host in ("spark-head", "spark-worker")
        for name, text in rendered(found[host]).items()
    }
    gateway = rendered(found["with-gateway"])
    for name in ("gateway.conf", "sparkloom-gateway-keys.service", "sparkloom-agent.service"):
        files[f"with-gateway/{name}"] = gateway[name]
    files["with-oci/sparkloom-agent.service"] = rendered(found["with-oci"])["sparkloom-agent.service"]
    return files


def test_rendered_files_are_the_golden_ones() -> None:
    files = all_files()
    if os.environ.get("SPARKLOOM_WRITE_GOLDEN"):
        for old in GOLDEN.rglob("*.*"):
            old.unlink()
        for path, text in files.items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / path).write_text(text)
    kept = {str(path.relative_to(GOLDEN)): path.read_text() for path in GOLDEN.rglob("*") if path.is_file()}
    changes = [
        line
        for path in sorted(kept.keys() | files.keys())
        for line in difflib.unified_diff(
            kept.get(path, "").splitlines(),
            files.get(path, "").splitlines(),
            f"golden/{path}",
            "rendered",
            n=1,
        )
    ]
    assert not changes, "\n".join(
        [*changes, "if this is meant: SPARKLOOM_WRITE_GOLDEN=1 pytest tests/nix/test_nix_hosts.py"]
    )


@pytest.mark.parametrize("host", ["spark-head", "spark-worker"])
def test_host_evaluates_to_a_whole_system(host: str) -> None:
    found = facts("hosts")[host]
    assert re.fullmatch(rf"/nix/store/\w+-nixos-system-{host}-.*\.drv", found["toplevel"])
    assert found["failed"] == []
    assert found["warnings"] == []


def test_template_gives_the_same_systems() -> None:
    found = facts("hosts")
    assert found["template"] == {host: found[host]["toplevel"] for host in ("spark-head", "spark-worker")}


def test_template_is_a_copy_of_the_hosts() -> None:
    hosts = HERE.parents[1] / "hosts"
    copies = {path.name: path.read_text() for path in (hosts / "template").glob("*.nix")}
    del copies["flake.nix"]
    assert copies == {path.name: path.read_text() for path in hosts.glob("*.nix")}


def test_variants_hold_their_assertions() -> None:
    for name in ("with-gateway", "with-oci", "exposed"):
        assert facts("hosts")[name]["failed"] == [], name


def test_firewall_opens_what_was_asked_for_and_trusts_the_fabric_only() -> None:
    found = facts("hosts")
    rails = ["enp1s0f0np0", "enP2p1s0f0np0"]
    for name in ("spark-head", "spark-worker", "with-gateway", "with-oci", "exposed"):
        firewall = found[name]["firewall"]
        assert firewall["enable"]
        # The hardware module wants the container bridge trusted; the rendezvous ports have no authentication.
        assert firewall["trustedInterfaces"] == ["lo", *rails]
        assert firewall["allowedUDPPorts"] == []
    ports = {
        name: system["firewall"]["allowedTCPPorts"] for name, system in found.items() if "firewall" in system
    }
    assert ports == {
        "spark-head": [22],
        "spark-worker": [22],
        "with-gateway": [22, 443],
        "with-oci": [22],
        "exposed": [22, 8888],
    }


def test_both_ranks_read_the_same_file() -> None:
    found = facts("hosts")
    assert found["spark-head"]["cluster"] == found["spark-worker"]["cluster"]


def test_cluster_file_is_what_the_program_accepts(tmp_path: Path) -> None:
    from sparkloom.cluster import load

    for name, system in facts("hosts").items():
        if "cluster" not in system:
            continue
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(system["cluster"]))
        assert load(file).nodes[0].name == "spark-head"


def test_memory_policy() -> None:
    for name in ("spark-head", "spark-worker"):
        sysctl = facts("hosts")[name]["sysctl"]
        assert sysctl["vm.swappiness"] == 0
        assert "vm.min_free_kbytes" not in sysctl


def test_options_that_switch_parts_off() -> None:
    exposed = facts("hosts")["exposed"]
    assert "sparkloom-weights.service" not in exposed["units"]
    assert "sparkloom-clocks.service" not in exposed["units"]
    assert "sparkloom-weights.service" not in exposed["units"]["sparkloom-agent.service"]
    assert "LoadCredential=api.key:/etc/sparkloom/api.key" in exposed["units"]["sparkloom-agent.service"]


def test_worker_never_gets_the_api_key() -> None:
    text = facts("hosts")["spark-worker"]["units"]["sparkloom-agent.service"]
    assert "api.key" not in text


def test_units_carry_the_shared_facts() -> None:
    from sparkloom.units import facts as unit_facts

    service = unit_facts()["units"]["sparkloom-agent.service"]["Service"]
    text = facts("hosts")["spark-head"]["units"]["sparkloom-agent.service"]
    lines = text.splitlines()
    for key, value in service.items():
        if key.startswith("Exec") or "@" in json.dumps(value):
            continue
        for one in value if isinstance(value, list) else [value]:
            expected = str(one).lower() if isinstance(one, bool) else one
            assert f"{key}={expected}" in lines, (key, expected)


def test_containers_get_devices_and_no_privileges() -> None:
    unit = facts("hosts")["with-oci"]["units"]["sparkloom-agent.service"]
    assert "nvidia-container-toolkit-cdi-generator.service" in unit
    assert "LimitMEMLOCK=infinity" in unit
    assert "privileged" not in unit


def test_prometheus_scrapes_the_agent_and_the_engine() -> None:
    assert facts("hosts")["with-gateway"]["scrapes"] == ["127.0.0.1:8771", "127.0.0.1:8888"]

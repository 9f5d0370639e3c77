"""Two nodes: MTU on one side only, missing rails, and the size of a bandwidth test."""

from __future__ import annotations

import ipaddress
import json

import pytest
from fixtures.spark_tree import one_cable

from sparkloom.cli.main import run
from sparkloom.commands import MISSING, Answer, ask
from sparkloom.errors import SparkloomError
from sparkloom.fabric import choose_rails, compare, nccl_environment, rails_from_report, read_fabric
from sparkloom.fabric.environment import check_environment
from sparkloom.fabric.probe import bandwidth_buffer, judge_ping, ping_argv
from sparkloom.findings import Level
from sparkloom.sysroot import SysRoot

GIB = 1 << 30
GOOD, NONE = Answer(0, "", ""), Answer(1, "", "")


def rails(tree, root, *addresses):
    chosen, _ = choose_rails(
        read_fabric(SysRoot(tree.write(root))), [ipaddress.ip_address(a) for a in addresses]
    )
    return chosen


@pytest.fixture
def pair(tmp_path):
    head = rails(one_cable(), tmp_path / "head", "10.0.0.1", "10.0.1.1")
    tree = one_cable("10.0.0.2", "10.0.1.2", index=5)
    return head, tree, tmp_path / "worker"


def levels(findings):
    return {f.check: f.level for f in findings}


def test_equal_nodes_agree(pair):
    head, tree, root = pair
    found = compare("head", head, "worker", rails(tree, root, "10.0.0.2", "10.0.1.2"))
    assert levels(found) == {"fabric.peer": Level.ok}


@pytest.mark.parametrize("field", ["mtu", "active_mtu"])
@pytest.mark.parametrize("side", ["head", "worker"])
def test_a_one_sided_mtu_is_refused_and_the_side_is_named(tmp_path, field, side):
    trees = {"head": one_cable(), "worker": one_cable("10.0.0.2", "10.0.1.2")}
    for name, tree in trees.items():
        half = tree.halves["enP2p1s0f0np0"]
        setattr(half, field, 1024 if name == side else 4096)
        for other in tree.halves.values():
            if other is not half:
                setattr(other, field, 4096)
    found = compare(
        "head",
        rails(trees["head"], tmp_path / "h", "10.0.0.1", "10.0.1.1"),
        "worker",
        rails(trees["worker"], tmp_path / "w", "10.0.0.2", "10.0.1.2"),
    )
    refusal = next(f for f in found if f.check == f"fabric.peer.{field}")
    assert refusal.level is Level.fail
    assert f"{side} enP2p1s0f0np0 is the low side" in refusal.summary
    assert len(found) == 1


def test_a_missing_second_rail_is_refused(pair):
    head, tree, root = pair
    found = compare("head", head, "worker", rails(tree, root, "10.0.0.2"))
    assert levels(found) == {"fabric.peer.count": Level.fail}
    assert "head has 2 rails, worker has 1 rail" in found[0].summary


def test_crossed_rails_and_equal_addresses_are_named(pair):
    head, tree, root = pair
    found = compare("head", head, "worker", rails(tree, root, "10.0.1.2", "10.0.0.2"))
    assert levels(found) == {"fabric.peer.subnet": Level.warn}
    assert levels(compare("head", head, "copy", head)) == {"fabric.peer.address": Level.fail}


def test_a_report_of_the_peer_is_as_good_as_its_tree(pair, tmp_path, capsys):
    _, tree, root = pair
    tree.write(root)
    one_cable().write(tmp_path / "me")
    peer = ["--root", str(root), "--address", "10.0.0.2,10.0.1.2", "--format", "json"]
    assert run(["fabric", "show", *peer]) == 0
    report = tmp_path / "peer.json"
    report.write_text(capsys.readouterr().out)
    mine = ["--root", str(tmp_path / "me"), "--address", "10.0.0.1,10.0.1.1", "--format", "json"]
    assert run(["fabric", "check", *mine, "--peer", str(report)]) == 0
    assert len(json.loads(capsys.readouterr().out)["peer_rails"]) == 2
    assert run(["fabric", "check", *mine, "--peer", str(root), "--peer-address", "10.0.0.2"]) == 3
    archive = tmp_path / "peer.tar.gz"
    assert run(["capture", str(archive), "--root", str(root)]) == 0
    assert run(["fabric", "check", *mine, "--peer", str(archive), "--peer-address", "10.0.0.2,10.0.1.2"]) == 0
    report.write_text("{")
    assert run(["fabric", "check", *mine, "--peer", str(report)]) == 4


def test_addresses_come_from_the_cluster_file(pair, tmp_path, capsys):
    _, tree, root = pair
    tree.write(root)
    one_cable().write(tmp_path / "me")
    file = tmp_path / "cluster.json"
    nodes = [
        {"name": "head", "role": "head", "fabric": {"addresses": ["10.0.0.1", "10.0.1.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["10.0.0.2", "10.0.1.2"]}},
    ]
    file.write_text(json.dumps({"nodes": nodes}))
    args = ["--cluster", str(file), "--node", "head", "--root", str(tmp_path / "me"), "--format", "json"]
    assert run(["fabric", "check", *args, "--peer", str(root)]) == 0
    out = json.loads(capsys.readouterr().out)
    assert "2 rails agree between head and worker" in json.dumps(out)
    assert run(["fabric", "check", *args]) == 0
    assert json.loads(capsys.readouterr().out)["peer_rails"] == []
    assert run(["fabric", "check", *args, "--node", "nobody"]) == 2


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"rails": 3}, {"rails": [3]}, {"rails": [{}]}, {"rails": [{"netdev": 1}]}],
)
def test_a_wrong_report_is_one_clear_error(value):
    with pytest.raises(SparkloomError) as caught:
        rails_from_report(value, "peer.json")
    assert caught.value.file == "peer.json"
    assert caught.value.mend


def test_report_values_are_checked_by_kind(pair):
    row = pair[0][0].as_dict()
    assert rails_from_report({"rails": [row]}, "f")[0].as_dict() == row
    with pytest.raises(SparkloomError, match="not valid"):
        rails_from_report({"rails": [{**row, "mtu": "9000"}]}, "f")


def test_a_test_is_never_larger_than_free_memory_allows():
    for available in (9 * GIB, 20 * GIB, 60 * GIB, 120 * GIB):
        size = bandwidth_buffer(available)
        assert size.total_bytes <= available * 0.05
        assert available - size.total_bytes >= 8 * GIB
    with pytest.raises(SparkloomError, match="may freeze") as caught:
        bandwidth_buffer(110 * GIB, wanted=16 * GIB)
    assert caught.value.code == 5
    assert "or less" in caught.value.mend
    for available in (0, 1 * GIB, 8 * GIB):
        with pytest.raises(SparkloomError, match="too little"):
            bandwidth_buffer(available)
    with pytest.raises(SparkloomError):
        bandwidth_buffer(110 * GIB, wanted=0)


def test_bandwidth_takes_the_smaller_node(tmp_path, capsys):
    for name, gib in (("head", 30), ("worker", 60)):
        kib = gib << 20
        (tmp_path / name).write_text(f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n")
    args = [x for name in ("head", "worker") for x in ("--meminfo", str(tmp_path / name))]
    assert run(["fabric", "bandwidth", *args, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["total_bytes"] <= 30 * GIB * 0.05
    assert run(["fabric", "bandwidth", *args, "--size", str(16 * GIB), "--format", "json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 5


@pytest.mark.parametrize(
    ("small", "full", "level", "words"),
    [
        (GOOD, GOOD, Level.ok, "unfragmented"),
        (GOOD, Answer(1, "3 packets transmitted, 0 received", ""), Level.fail, "far side"),
        (GOOD, Answer(1, "", "ping: local error: message too long, mtu=1500"), Level.fail, "this side"),
        (NONE, NONE, Level.fail, "no answer even to small"),
        (Answer(MISSING, "", ""), Answer(MISSING, "", ""), Level.warn, "not installed"),
    ],
)  # fmt: skip
def test_ping_answers_are_judged(small, full, level, words):
    finding = judge_ping("10.0.0.1", "10.0.0.2", 9000, small, full)
    assert finding.level is level
    assert words in finding.summary


def test_a_ping_fills_the_mtu_exactly():
    argv = ping_argv("10.0.0.2", "10.0.0.1", 9000)
    assert argv[argv.index("-s") + 1] == "8972"
    assert argv[argv.index("-M") + 1] == "do"


def test_a_called_program_never_eats_the_callers_input(tmp_path):
    stub = tmp_path / "ssh"
    stub.write_text("#!/bin/sh\nwc -c\n")
    stub.chmod(0o755)
    assert ask([str(stub)]).out.strip() == "0"
    assert ask([str(tmp_path / "absent")]).status == MISSING
    assert ask(["sleep", "5"], timeout_s=0.05).status == 124


def test_a_value_set_by_hand_is_never_replaced_silently(pair):
    env = nccl_environment(pair[0])
    assert env["NCCL_NET"] == "IB"
    assert check_environment({}, env) == []
    assert check_environment({"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"}, env) == []
    found = check_environment({"NCCL_IB_GID_INDEX": "7"}, env)
    assert found[0].level is Level.warn
    assert "NCCL_IB_GID_INDEX=7" in found[0].summary
    assert nccl_environment([]) == {}

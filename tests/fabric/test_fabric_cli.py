"""`sparkloom fabric`: the JSON contract, exit codes, and clear errors."""

from __future__ import annotations

import json

import pytest
from fixtures.spark_tree import LINK_LOCAL, Half, SparkTree, one_cable

from sparkloom.cli.main import run

KEYS = ["netdev", "rdma", "address", "gid_index", "gid", "gid_type", "mtu", "active_mtu", "carrier", "rate"]


def show(capsys, *args):
    code = run(["fabric", "show", *map(str, args), "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_show_prints_the_contract(tmp_path, capsys):
    root = one_cable(index=5).write(tmp_path / "r")
    code, out = show(capsys, "--root", root, "--address", "10.0.0.1,10.0.1.1")
    assert code == 0
    assert [list(rail) for rail in out["rails"]] == [KEYS, KEYS]
    assert out["rails"][1]["gid_index"] == 5
    assert out["environment"]["NCCL_IB_GID_INDEX"] == "5"
    assert {tuple(f) for f in out["findings"]} == {("check", "level", "summary", "detail", "mend")}


def test_a_refusal_exits_3_and_prints_the_table(tmp_path, capsys):
    root = SparkTree({"enp1s0f0np0": Half()}).write(tmp_path / "r")
    code, out = show(capsys, "--root", root, "--address", "10.0.0.1")
    assert code == 3
    assert LINK_LOCAL in json.dumps(out)
    assert run(["fabric", "show", "--root", str(root), "--address", "10.0.0.1"]) == 3
    text = capsys.readouterr().out
    assert LINK_LOCAL in text
    assert "mend:" in text


def test_strict_turns_a_warning_into_exit_1(tmp_path, capsys):
    tree = one_cable()
    tree.halves["enp1s0f0np0"].mtu = 1500
    root = tree.write(tmp_path / "r")
    assert show(capsys, "--root", root, "--address", "10.0.0.1,10.0.1.1")[0] == 0
    assert show(capsys, "--root", root, "--address", "10.0.0.1,10.0.1.1", "--strict")[0] == 1


@pytest.mark.parametrize("address", ["10.0.0", "", ",", "127.0.0.1", "0.0.0.0", "10.0.0.1,10.0.0.1", "host"])
def test_a_wrong_address_is_a_usage_error(tmp_path, capsys, address):
    root = one_cable().write(tmp_path / "r")
    code, out = show(capsys, "--root", root, "--address", address)
    assert code == 2
    assert out["error"]["field"] == "--address"
    assert out["error"]["mend"]


def test_a_missing_root_is_a_usage_error(tmp_path, capsys):
    code, out = show(capsys, "--root", tmp_path / "absent", "--address", "10.0.0.1")
    assert code == 2
    assert out["error"]["field"] == "--root"


def test_the_running_machine_can_be_read(capsys):
    code, out = show(capsys)
    assert code in (0, 3)
    assert isinstance(out["rails"], list)

"""Rails: ports, both halves, the GID entry of each device, and refusals that name the cause."""

from __future__ import annotations

import ipaddress

import pytest
from fixtures.spark_tree import LINK_LOCAL, ZERO, Half, SparkTree, kernel_layout, mapped, one_cable, put

from sparkloom.fabric import choose_rails, nccl_environment, parse_addresses, read_fabric
from sparkloom.findings import Level, worst
from sparkloom.sysroot import SysRoot

A, B = "10.0.0.1", "10.0.1.1"


def rails_of(tree, tmp_path, *addresses, devices=()):
    fabric = read_fabric(SysRoot(tree.write(tmp_path / "root")))
    return choose_rails(fabric, [ipaddress.ip_address(a) for a in addresses], devices)


def named(findings, check):
    return [f for f in findings if f.check == check]


@pytest.mark.parametrize("index", [1, 2, 3, 5, 11, 200])
def test_index_is_found_wherever_the_kernel_put_the_address(tmp_path, index):
    rails, findings = rails_of(one_cable(index=index), tmp_path, A, B)
    assert [r.gid_index for r in rails] == [index, index]
    assert [r.gid for r in rails] == [mapped(A), mapped(B)]
    assert [r.netdev for r in rails] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert [r.rdma for r in rails] == ["rocep1s0f0", "roceP2p1s0f0"]
    assert {r.gid_type for r in rails} == {"RoCE v2"}
    assert worst(findings) is Level.ok


def test_two_nodes_with_different_tables_export_different_indexes(tmp_path):
    first, _ = rails_of(one_cable(index=3), tmp_path / "a", A, B)
    second, _ = rails_of(one_cable("10.0.0.2", "10.0.1.2", index=5), tmp_path / "b", "10.0.0.2", "10.0.1.2")
    assert nccl_environment(first)["NCCL_IB_GID_INDEX"] == "3"
    assert nccl_environment(second)["NCCL_IB_GID_INDEX"] == "5"
    assert nccl_environment(second)["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"


def test_devices_of_one_rank_with_different_indexes_leave_the_choice_to_nccl(tmp_path):
    tree = one_cable()
    tree.halves["enP2p1s0f0np0"].index = 7
    rails, _ = rails_of(tree, tmp_path, A, B)
    env = nccl_environment(rails)
    assert "NCCL_IB_GID_INDEX" not in env
    assert env["NCCL_IB_ROCE_VERSION_NUM"] == "2"
    assert env["NCCL_IB_ADDR_FAMILY"] == "AF_INET"


@pytest.mark.parametrize("links", ["device_links", "device_net", "ndevs"])
@pytest.mark.parametrize("fib", [True, False])
def test_any_one_link_between_interface_and_device_is_enough(tmp_path, links, fib):
    tree = one_cable()
    tree.device_links = tree.device_net = tree.ndevs = False
    setattr(tree, links, True)
    tree.fib = fib
    rails, findings = rails_of(tree, tmp_path, A)
    assert (rails[0].netdev, rails[0].gid_index, rails[0].mtu) == ("enp1s0f0np0", 3, 9000)
    assert worst(findings) is not Level.fail


def test_the_kernels_own_layout_of_links(tmp_path):
    tree = one_cable(index=5)
    tree.device_links = False
    tree.ndevs = False
    root = kernel_layout(tree.write(tmp_path / "root"))
    assert (root / "sys/class/net/enp1s0f0np0").is_symlink()
    assert (root / "sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0/mtu").exists()
    fabric = read_fabric(SysRoot(root))
    rails, findings = choose_rails(fabric, parse_addresses([A, B]))
    assert [(r.netdev, r.gid_index, r.mtu) for r in rails] == [
        ("enp1s0f0np0", 5, 9000),
        ("enP2p1s0f0np0", 5, 9000),
    ]
    assert worst(findings) is Level.ok
    assert {p.pci for p in fabric.ports} == {"0000:01:00.0", "0000:01:00.1", "0002:01:00.0", "0002:01:00.1"}


REFUSALS = {
    "all zero": (Half(gids=dict.fromkeys(range(4), (ZERO, "", ""))), "every entry is zero"),
    "link-local only": (Half(), "link-local"),
    "v1 only": (Half(gids={2: (mapped(A), "IB/RoCE v1", "enp1s0f0np0")}), "another kind (IB/RoCE v1)"),
    "type unreadable": (Half(gids={3: (mapped(A), "", "enp1s0f0np0")}), "another kind (unreadable type)"),
    "other address": (Half("10.9.9.9"), "maps other addresses (10.9.9.9)"),
    "port down": (Half(up=False), "the port is down"),
    "empty table": (Half(gids={}), "every entry is zero"),
}


@pytest.mark.parametrize(("half", "cause"), REFUSALS.values(), ids=list(REFUSALS))
def test_no_entry_is_a_refusal_with_table_and_cause(tmp_path, half, cause):
    rails, findings = rails_of(SparkTree({"enp1s0f0np0": half}), tmp_path, A)
    refusal = named(findings, "fabric.gid")[0]
    assert refusal.level is Level.fail
    assert cause in refusal.summary
    assert "rocep1s0f0" in refusal.detail
    assert refusal.mend
    assert all(r.gid_index is None for r in rails)
    for gid, _, _ in (half.gids or {}).values():
        assert gid in refusal.detail or gid == ZERO
    if half.gids is None and half.up:
        assert LINK_LOCAL in refusal.detail


def test_an_address_on_the_management_port_is_named(tmp_path):
    tree = one_cable(A, None)
    tree.files["commands/ip-addr.json"] = (
        '[{"ifname": "enP7s7", "addr_info": [{"family": "inet", "local": "192.168.1.5", "prefixlen": 24}]}]'
    )
    _, findings = rails_of(tree, tmp_path, "192.168.1.5")
    assert "enP7s7, which is no interface of an RDMA device" in named(findings, "fabric.gid")[0].summary


def test_an_address_that_is_set_but_has_no_entry(tmp_path):
    tree = SparkTree({"enp1s0f0np0": Half()})
    tree.files["commands/ip-addr.json"] = (
        '[{"ifname": "enp1s0f0np0", "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 24}]}]'
    )
    _, findings = rails_of(tree, tmp_path, A)
    assert "enp1s0f0np0 has the address, but" in named(findings, "fabric.gid")[0].summary


def test_no_rdma_device_at_all(tmp_path):
    rails, findings = rails_of(SparkTree(), tmp_path, A)
    assert rails == []
    assert findings[0].check == "fabric.devices"
    assert findings[0].level is Level.fail


def test_ports_are_detected_from_carrier_and_state(tmp_path):
    rails, findings = rails_of(one_cable(), tmp_path)
    assert [r.netdev for r in rails] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert worst(findings) is Level.ok


def test_the_second_half_without_address_or_unused_is_named(tmp_path):
    _, findings = rails_of(one_cable(A, None), tmp_path / "a", A)
    assert "set an address" in named(findings, "fabric.half")[0].mend
    _, findings = rails_of(one_cable(), tmp_path / "b", A)
    assert "add 10.0.1.1" in named(findings, "fabric.half")[0].mend
    _, findings = rails_of(one_cable(A, None), tmp_path / "c", A, B)
    refusal = next(f for f in named(findings, "fabric.gid") if f.level is Level.fail)
    assert B in refusal.summary
    assert "link-local" in refusal.summary
    assert "enP2p1s0f0np0" in refusal.mend
    assert "rocep1s0f0" not in refusal.detail  # the half that is right is not shown


def test_two_cables_give_four_rails(tmp_path):
    tree = one_cable()
    tree.halves["enp1s0f1np1"] = Half("10.0.2.1")
    tree.halves["enP2p1s0f1np1"] = Half("10.0.3.1")
    rails, findings = rails_of(tree, tmp_path)
    assert len(rails) == 4
    assert not named(findings, "fabric.half")


def test_a_rail_whose_cable_is_out_fails(tmp_path):
    tree = one_cable()
    tree.halves["enp1s0f0np0"].up = False
    _, findings = rails_of(tree, tmp_path, A, B)
    assert [f.level for f in named(findings, "fabric.link")] == [Level.fail]


@pytest.mark.parametrize(("mtu", "words"), [(1500, "carry 1024"), (4200, "carry 4096"), (300, "under 256")])
def test_a_small_mtu_is_a_warning_with_its_rdma_size(tmp_path, mtu, words):
    tree = one_cable()
    tree.halves["enp1s0f0np0"].mtu = mtu
    _, findings = rails_of(tree, tmp_path, A, B)
    assert [f.level for f in named(findings, "fabric.mtu")] == [Level.warn]
    assert words in named(findings, "fabric.mtu")[0].summary


def test_a_declared_mtu_is_what_counts(tmp_path):
    tree = one_cable()
    for half in tree.halves.values():
        half.mtu = 4200
    fabric = read_fabric(SysRoot(tree.write(tmp_path / "root")))
    addresses = parse_addresses([A, B])
    assert worst(choose_rails(fabric, addresses, mtu=4200)[1]) is Level.ok
    found = named(choose_rails(fabric, addresses, mtu=1500)[1], "fabric.mtu")
    assert "1500 is declared" in found[0].summary


def test_a_link_local_address_is_a_warning(tmp_path):
    _, findings = rails_of(one_cable("169.254.3.1", None), tmp_path, "169.254.3.1")
    assert [f.level for f in named(findings, "fabric.address")] == [Level.warn]


def test_active_mtu_comes_from_a_file_or_ibv_devinfo_and_is_null_otherwise(tmp_path):
    tree = one_cable()
    tree.halves["enp1s0f0np0"].active_mtu = 1024
    tree.files["commands/ibv_devinfo.txt"] = (
        "hca_id:\troceP2p1s0f0\n\ttransport: InfiniBand (0)\n\t\tport:\t1\n\t\t\tactive_mtu:\t\t4096 (5)"
    )
    rails, findings = rails_of(tree, tmp_path / "a", A, B)
    assert [r.active_mtu for r in rails] == [1024, 4096]
    assert "RDMA MTU 1024 although" in named(findings, "fabric.mtu")[0].summary
    rails, _ = rails_of(one_cable(), tmp_path / "b", A)
    assert rails[0].active_mtu is None


def test_an_address_on_both_halves_is_refused_unless_one_is_up(tmp_path):
    tree = one_cable(A, A)
    rails, findings = rails_of(tree, tmp_path / "a", A)
    assert rails == []
    assert "several RDMA devices" in named(findings, "fabric.gid")[0].summary
    tree.halves["enp1s0f0np0"].up = False
    rails, _ = rails_of(tree, tmp_path / "b", A)
    assert [r.netdev for r in rails] == ["enP2p1s0f0np0"]


def test_halves_in_one_subnet_are_a_warning(tmp_path):
    _, findings = rails_of(one_cable(A, "10.0.0.9"), tmp_path, A, "10.0.0.9")
    assert [f.level for f in named(findings, "fabric.subnet")] == [Level.warn]


def test_a_device_chosen_by_hand_limits_the_choice(tmp_path):
    rails, findings = rails_of(one_cable(), tmp_path / "a", devices=["roceP2p1s0f0"])
    assert [r.rdma for r in rails] == ["roceP2p1s0f0"]
    assert "chosen by hand" in named(findings, "fabric.half")[0].mend
    _, findings = rails_of(one_cable(), tmp_path / "b", devices=["mlx5_7"])
    assert "mlx5_7" in named(findings, "fabric.device")[0].summary


def test_a_vlan_interface_of_the_device_holds_the_address(tmp_path):
    tree = SparkTree({"enp1s0f0np0": Half(gids={4: (mapped(A), "RoCE v2", "enp1s0f0np0.7")})})
    tree.files["sys/class/net/enp1s0f0np0.7/mtu"] = "9000"
    rails, _ = rails_of(tree, tmp_path, A)
    assert (rails[0].netdev, rails[0].mtu) == ("enp1s0f0np0.7", 9000)


def test_missing_optional_files_are_null(tmp_path):
    root = tmp_path / "root"
    put(root, "sys/class/infiniband/mlx5_0/ports/1/gids/3", mapped(A))
    put(root, "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", "RoCE v2")
    rails, findings = choose_rails(read_fabric(SysRoot(root)), parse_addresses([A]))
    assert rails[0].as_dict() == {
        "netdev": None, "rdma": "mlx5_0", "address": A, "gid_index": 3, "gid": mapped(A),
        "gid_type": "RoCE v2", "mtu": None, "active_mtu": None, "carrier": None, "rate": None,
    }  # fmt: skip
    assert worst(findings) is Level.ok


def test_links_do_not_leave_the_tree(tmp_path):
    put(tmp_path, "secret", "outside")
    root = tmp_path / "root"
    put(root, "etc/inside", "in the tree")
    (root / "etc/up").symlink_to("../../secret")
    (root / "etc/absolute").symlink_to("/etc/inside")
    (root / "etc/loop").symlink_to("loop")
    tree = SysRoot(root)
    assert tree.text("etc/up") is None
    assert tree.text("etc/absolute") == "in the tree"
    assert tree.text("etc/loop") is None
    assert tree.text("etc") is None

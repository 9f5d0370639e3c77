"""systemd-networkd applies the rendered `.network` files to veth pairs in two network namespaces.

The names of the interfaces are those of a Spark, so the very files of the golden folder are used. A veth has
no RDMA device: for the fabric check the RDMA part of a tree is made up, the network part is read live.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nixlab import HERE, REPO

sys.path.insert(0, str(REPO / "tests/fixtures"))
from spark_tree import one_cable

NETWORKD = Path("/lib/systemd/systemd-networkd")
GOLDEN = HERE / "golden"
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
ADDRESSES = {
    "spark-head": ("192.168.100.1", "192.168.101.1"),
    "spark-worker": ("192.168.100.2", "192.168.101.2"),
}
START = """
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp
mount -t tmpfs none /etc/systemd/network
cp {golden}/*.network /etc/systemd/network/
mount -o remount,ro /sys
SYSTEMD_LOG_TARGET=console exec {networkd}
"""

pytestmark = pytest.mark.root


def sh(*command: str, check: bool = True) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or result.returncode == 0, result.stderr
    return result.stdout


def inside(namespace: str, *command: str, check: bool = True) -> str:
    return sh("ip", "netns", "exec", namespace, *command, check=check)


def addresses(namespace: str) -> dict[str, dict[str, Any]]:
    """Interface -> what `ip -j addr` says of it."""
    return {link["ifname"]: link for link in json.loads(sh("ip", "-n", namespace, "-j", "addr"))}


def ipv4(namespace: str, name: str) -> list[str]:
    found = addresses(namespace)[name]["addr_info"]
    return [f"{info['local']}/{info['prefixlen']}" for info in found if info["family"] == "inet"]


def wait_for(what: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "networkd did not apply the files in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[str, str]]:
    """Two namespaces, both cable halves between them, networkd with one node's files in each."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not NETWORKD.exists() or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("systemd-networkd, unshare and ip are needed")
    names = {node: f"gnet{os.getpid()}{letter}" for node, letter in zip(ADDRESSES, "ab", strict=True)}
    head, worker = names.values()
    processes = []
    try:
        for name in names.values():
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("this machine does not allow network namespaces")
        for rail in RAILS:
            sh(
                "ip",
                "link",
                "add",
                rail,
                "netns",
                head,
                "type",
                "veth",
                "peer",
                "name",
                rail,
                "netns",
                worker,
            )
        for node, name in names.items():
            script = START.format(golden=GOLDEN / node, networkd=NETWORKD)
            command = ["ip", "netns", "exec", name, "unshare", "--mount", "bash", "-c", script]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield names
    finally:
        for process in processes:
            process.terminate()
            process.wait(10)
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_both_halves_get_their_address_and_jumbo_frames(pair: dict[str, str]) -> None:
    for node, namespace in pair.items():
        for rail, address in zip(RAILS, ADDRESSES[node], strict=True):
            wait_for(lambda n=namespace, r=rail, a=address: ipv4(n, r) == [f"{a}/24"])
            link = addresses(namespace)[rail]
            assert link["mtu"] == 9000
            assert link["operstate"] == "UP"
            # An IPv6 link-local address would shift the RoCE GID table.
            assert [info for info in link["addr_info"] if info["family"] == "inet6"] == []


def test_full_size_packets_pass_unfragmented(pair: dict[str, str]) -> None:
    if shutil.which("ping") is None:
        pytest.skip("ping is not installed")
    for address in ADDRESSES["spark-worker"]:
        wait_for(
            lambda a=address: (
                "1 received"
                in inside(pair["spark-head"], "ping", "-c1", "-W2", "-M", "do", "-s", "8972", a, check=False)
            )
        )


def test_addresses_stay_through_a_link_flap(pair: dict[str, str]) -> None:
    head, worker = pair["spark-head"], pair["spark-worker"]
    wait_for(lambda: ipv4(head, RAILS[0]) == ["192.168.100.1/24"])
    sh("ip", "-n", worker, "link", "set", RAILS[0], "down")
    try:
        wait_for(lambda: addresses(head)[RAILS[0]]["operstate"] == "DOWN")
        time.sleep(1)
        assert ipv4(head, RAILS[0]) == ["192.168.100.1/24"]
        assert addresses(head)[RAILS[0]]["mtu"] == 9000
    finally:
        sh("ip", "-n", worker, "link", "set", RAILS[0], "up")
    wait_for(lambda: addresses(head)[RAILS[0]]["operstate"] == "UP")


def live_tree(namespace: str, node: str, root: Path) -> Path:
    """A Spark's tree whose network half is what the namespace shows now."""
    one_cable(*ADDRESSES[node]).write(root)
    for rail in RAILS:
        for name in ("mtu", "carrier", "operstate"):
            live = inside(namespace, "cat", f"/sys/class/net/{rail}/{name}")
            (root / f"sys/class/net/{rail}/{name}").write_text(live)
    for name in ("fib_trie", "route"):
        (root / f"proc/net/{name}").write_text(inside(namespace, "cat", f"/proc/net/{name}"))
    return root


def test_the_agent_s_fabric_check_passes(pair: dict[str, str], tmp_path: Path) -> None:
    for node, namespace in pair.items():
        wait_for(lambda ns=namespace, n=node: ipv4(ns, RAILS[1]) == [f"{ADDRESSES[n][1]}/24"])
        live_tree(namespace, node, tmp_path / node)
    command = [
        sys.executable, "-m", "sparkloom", "fabric", "check", "--format", "json",
        "--root", str(tmp_path / "spark-head"), "--address", ",".join(ADDRESSES["spark-head"]),
        "--peer", str(tmp_path / "spark-worker"), "--peer-address", ",".join(ADDRESSES["spark-worker"]),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(REPO / "python/src")}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert [rail["address"] for rail in found["rails"]] == list(ADDRESSES["spark-head"])
    assert [rail["mtu"] for rail in found["rails"]] == [9000, 9000]
    assert all(finding["level"] == "ok" for finding in found["findings"]), found["findings"]

    # The same check names the side when one end is wrong.
    (tmp_path / f"spark-worker/sys/class/net/{RAILS[1]}/mtu").write_text("1500\n")
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode != 0
    assert "1500" in result.stdout

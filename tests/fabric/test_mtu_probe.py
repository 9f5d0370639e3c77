"""Real packets between two network namespaces: a one-sided MTU passes a small ping and is found anyway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from sparkloom.commands import ask

HERE, THERE = "10.213.0.1", "10.213.0.2"
PROBE = (
    "import json, sys; from sparkloom.fabric.probe import probe_mtu;"
    "print(json.dumps(probe_mtu(sys.argv[1], sys.argv[2], 9000).as_dict()))"
)


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.fixture
def namespaces():
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program in ("ip", "ping"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    a, b = (f"slfab{os.getpid()}{side}" for side in "ab")
    if not ask(["ip", "netns", "add", a]).ok:
        pytest.skip("this machine does not allow network namespaces")
    try:
        ip("netns", "add", b)
        ip("-n", a, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", b)
        for space, address in ((a, HERE), (b, THERE)):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "v0")
            ip("-n", space, "link", "set", "v0", "mtu", "9000", "up")
        yield a, b
    finally:
        for space in (a, b):
            ask(["ip", "netns", "del", space])


def probe(space):
    argv = ["ip", "netns", "exec", space, sys.executable, "-c", PROBE, HERE, THERE]
    done = subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)


@pytest.mark.root
def test_one_sided_mtu_is_found_by_full_size_packets(namespaces):
    a, b = namespaces
    assert probe(a)["level"] == "ok"

    ip("-n", b, "link", "set", "v0", "mtu", "1500")
    found = probe(a)
    assert found["level"] == "fail"
    assert "far side" in found["summary"]

    ip("-n", a, "link", "set", "v0", "mtu", "1500")
    found = probe(a)
    assert found["level"] == "fail"
    assert "this side's MTU is below 9000" in found["summary"]

    ip("-n", b, "link", "set", "v0", "down")
    assert "no answer even to small packets" in probe(a)["summary"]

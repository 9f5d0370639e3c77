"""The head shares, the worker fetches: two network namespaces as the two nodes, the real commands."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from fixtures import tiny_checkpoint
from fixtures.fake_hub import REPO, REVISION

from sparkloom.commands import ask
from sparkloom.weights.manifest import FileEntry, make_manifest, save_manifest
from sparkloom.weights.places import Place
from sparkloom.weights.verify import verify

HEAD, WORKER = "10.214.0.1", "10.214.0.2"


@pytest.fixture
def spaces():
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not shutil.which("ip"):
        pytest.skip("ip is not installed")
    names = [f"slshr{os.getpid()}{side}" for side in "hw"]
    if not ask(["ip", "netns", "add", names[0]]).ok:
        pytest.skip("this machine does not allow network namespaces")
    try:
        ask(["ip", "netns", "add", names[1]])
        ask(
            [
                "ip",
                "-n",
                names[0],
                "link",
                "add",
                "v0",
                "type",
                "veth",
                "peer",
                "name",
                "v0",
                "netns",
                names[1],
            ]
        )
        for space, address in zip(names, (HEAD, WORKER), strict=True):
            assert ask(["ip", "-n", space, "addr", "add", f"{address}/24", "dev", "v0"]).ok
            assert ask(["ip", "-n", space, "link", "set", "v0", "up"]).ok
        yield names
    finally:
        for space in names:
            ask(["ip", "netns", "del", space])


def command(space, *args):
    return ["ip", "netns", "exec", space, sys.executable, "-m", "sparkloom", "weights", *map(str, args)]


@pytest.mark.root
def test_weights_go_from_head_to_worker_over_the_fabric(tmp_path, spaces):
    content = tiny_checkpoint.files()
    folder = tiny_checkpoint.write(tmp_path / "head", content)
    entries = [FileEntry(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in content.items()]
    manifest = make_manifest(REPO, REVISION, entries)
    save_manifest(folder / "sparkloom-manifest.json", manifest)
    verify(Place(folder), manifest)
    clusters = {}
    for name, path in (("head", folder), ("worker", tmp_path / "worker")):
        nodes = [
            {"name": "head", "role": "head", "fabric": {"addresses": [HEAD]}},
            {"name": "worker", "role": "worker", "fabric": {"addresses": [WORKER]}},
        ]
        model = {"repo": REPO, "revision": REVISION, "path": str(path)}
        clusters[name] = tmp_path / f"{name}.json"
        clusters[name].write_text(json.dumps({"nodes": nodes, "model": model, "drafter": {"kind": "none"}}))
    serving = command(spaces[0], "serve", clusters["head"], "--node", "head", "--port", 18772)
    # The worker's address is not on the head: the share says so instead of listening elsewhere.
    wrong = subprocess.run(
        command(spaces[0], "serve", clusters["head"], "--node", "worker", "--port", 18772),
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert wrong.returncode == 5
    assert "bring the fabric address up" in wrong.stderr
    server = subprocess.Popen(serving, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert f"http://{HEAD}:18772" in server.stdout.readline()
        fetching = command(
            spaces[1], "fetch", clusters["worker"], "--from", f"http://{HEAD}:18772", "--format", "json"
        )
        for attempt in range(20):
            done = subprocess.run(fetching, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 6 or attempt == 19:
                break
            time.sleep(0.3)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(json.loads(done.stdout)["targets"][0]["fetched"]) == sorted(content)
        assert all((tmp_path / "worker" / n).read_bytes() == d for n, d in content.items())
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
        server.stdout.close()

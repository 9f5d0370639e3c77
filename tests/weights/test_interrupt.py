"""Real processes: a fetch that is killed or interrupted goes on later where it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fixtures.fake_hub import REPO, REVISION

SHARD = "model-00001-of-00002.safetensors"
START = (
    "import sys; import sparkloom.weights.hub as hub; hub.DEFAULT_ENDPOINT = sys.argv[1];"
    "from sparkloom.cli.main import main; main(sys.argv[2:])"
)


def fetch(hub, folder):
    args = ["weights", "fetch", "--repo", REPO, "--revision", REVISION, "--path", str(folder)]
    env = {**os.environ, "HF_HOME": str(folder.parent / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", START, hub.url, *args, "--endpoint", hub.url, "--stall", "120"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
    )  # fmt: skip


def part_of(folder, hub, content):
    import hashlib

    return folder / ".sparkloom/parts" / hashlib.sha256(content[SHARD]).hexdigest()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_fetch_that_was_ended_goes_on_where_it_ended(tmp_path, hub, content, how):
    folder = tmp_path / "weights"
    hub.moods[SHARD].append("stall:12345")
    process = fetch(hub, folder)
    part = part_of(folder, hub, content)
    until = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size == 12345) and time.monotonic() < until:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    process.send_signal(how)
    out, _ = process.communicate(timeout=45)  # it does not wait for the stall time-out of 120 s
    assert process.returncode == (-9 if how == signal.SIGKILL else 130), out
    assert part.stat().st_size == 12345
    assert not (folder / SHARD).exists()
    hub.requests.clear()
    again = fetch(hub, folder)
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0, out
    assert [h.get("Range") for h in hub.asked(SHARD)] == ["bytes=12345-"]
    assert (folder / SHARD).read_bytes() == content[SHARD]

"""Sharing over the fabric, bundles for sites without internet, and the command line."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import tarfile
import threading
import time

import pytest
from aiohttp import web
from fixtures import tiny_checkpoint
from fixtures.fake_hub import REPO, REVISION

from sparkloom.cli.main import run
from sparkloom.errors import SparkloomError
from sparkloom.weights.bundle import pack, unpack
from sparkloom.weights.download import Options
from sparkloom.weights.manifest import FileEntry, make_manifest, save_manifest
from sparkloom.weights.obtain import obtain
from sparkloom.weights.places import Place
from sparkloom.weights.share import Share, make_app, nfs_export, share_address
from sparkloom.weights.targets import Target

FABRIC = ["192.168.100.1", "192.168.101.1"]
A = "model-00001-of-00002.safetensors"


def pinned(content):
    entries = [FileEntry(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in content.items()]
    return make_manifest(REPO, REVISION, entries)


@pytest.fixture
def content():
    return tiny_checkpoint.files()


@pytest.fixture
def place(tmp_path, content):
    return Place(tiny_checkpoint.write(tmp_path / "head", content))


def test_the_share_is_bound_to_the_fabric():
    address, network = share_address(None, FABRIC, 24)
    assert (address, str(network)) == ("192.168.100.1", "192.168.100.0/24")
    assert share_address("192.168.101.1", FABRIC, 24)[0] == "192.168.101.1"


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "::", "::1", "192.168.1.5", "10.0.0.1", "head"])
def test_loopback_wildcard_and_lan_are_refused(bind):
    with pytest.raises(SparkloomError) as caught:
        share_address(bind, FABRIC, 24)
    assert caught.value.code == 2
    assert "192.168.100.1" in caught.value.mend


def test_a_loopback_cluster_is_refused_too():
    with pytest.raises(SparkloomError, match="loopback"):
        share_address(None, ["127.0.0.2"], 8)


def test_the_nfs_export_names_the_fabric_only(tmp_path):
    address, network = share_address(None, FABRIC, 24)
    lines = nfs_export(tmp_path, address, network)
    assert lines["exports"].startswith(f"{tmp_path} 192.168.100.0/24(ro,")
    assert "host=192.168.100.1" in lines["nfs_conf"]
    assert lines["fstab"].startswith("192.168.100.1:")


@pytest.fixture
def serving(place, content):
    """Start the share on a port of this machine, for clients in the given network."""
    loops = []

    def start(network):
        app = make_app([Share("model", place.folder, pinned(content))], [ipaddress.ip_network(network)])
        loop = asyncio.new_event_loop()
        ready = threading.Event()
        found = {}

        def work():
            asyncio.set_event_loop(loop)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            loop.run_until_complete(runner.setup())
            loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
            found["port"] = runner.addresses[0][1]
            ready.set()
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        loops.append((loop, thread))
        assert ready.wait(10)
        return f"http://127.0.0.1:{found['port']}"

    yield start
    for loop, thread in loops:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def test_the_worker_takes_the_head_s_copy_and_resumes(tmp_path, serving, content):
    url = serving("127.0.0.0/8")
    target = Target("model", REPO, REVISION, tmp_path / "worker")
    part = tmp_path / "worker/.sparkloom/parts" / hashlib.sha256(content[A]).hexdigest()
    part.parent.mkdir(parents=True)
    part.write_bytes(content[A][:7000])
    _, done = obtain(target, [], Options(stall_s=2, token="hf_never"), peer=url)
    assert sorted(done.fetched) == sorted(content)
    assert all((tmp_path / "worker" / n).read_bytes() == d for n, d in content.items())


def test_a_proxy_of_the_environment_is_not_asked_for_the_fabric(tmp_path, serving, monkeypatch):
    url = serving("127.0.0.0/8")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    target = Target("model", REPO, REVISION, tmp_path / "worker")
    _, done = obtain(target, [], Options(stall_s=2, attempts=1), peer=url)
    assert len(done.fetched) == 4


def test_pages_are_handed_back_after_a_file_was_sent(serving, monkeypatch):
    import httpx

    dropped = []
    monkeypatch.setattr("sparkloom.weights.share.drop_pages", dropped.append)
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{serving('127.0.0.0/8')}/model/files/{A}").status_code == 200
    deadline = time.monotonic() + 10  # the server hands pages back after the last byte has left
    while not dropped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(dropped) == 1


def test_a_worker_with_another_pin_is_refused(tmp_path, serving):
    target = Target("model", REPO, "2" * 40, tmp_path / "worker")
    with pytest.raises(SparkloomError, match="the peer shares revision"):
        obtain(target, [], Options(), peer=serving("127.0.0.0/8"))


def test_only_the_snapshot_is_there_to_read_and_only_for_the_fabric(serving, place):
    import httpx

    (place.folder / "secret.txt").write_text("x")
    url = serving("127.0.0.0/8")
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{url}/model/files/{A}", headers={"Range": "bytes=0-9"}).status_code == 206
        for path in ("model/files/secret.txt", "model/files/..%2f..%2fetc/passwd", "other/manifest.json", ""):
            assert client.get(f"{url}/{path}").status_code == 404, path
        for method in ("PUT", "POST", "DELETE"):
            assert client.request(method, f"{url}/model/files/{A}").status_code == 405
        assert client.get(f"{serving('192.168.100.0/24')}/model/manifest.json").status_code == 403


def nothing(name, count):
    return None


def test_a_bundle_brings_everything_to_another_place(tmp_path, place, content):
    size = pack(place, pinned(content), tmp_path / "b.tar", None, nothing)
    assert size > pinned(content).bytes
    manifest = unpack(tmp_path / "b.tar", tmp_path / "there", REVISION, None, nothing)
    assert manifest == pinned(content)
    assert all((tmp_path / "there" / n).read_bytes() == d for n, d in content.items())
    before = (tmp_path / "there" / A).stat().st_ino
    unpack(tmp_path / "b.tar", tmp_path / "there", REVISION, None, nothing)
    assert (tmp_path / "there" / A).stat().st_ino == before  # verified files are not written again


def test_wrong_bundles_are_refused(tmp_path, place, content):
    pack(place, pinned(content), tmp_path / "b.tar", None, nothing)
    data = (tmp_path / "b.tar").read_bytes()
    with pytest.raises(SparkloomError, match="is pinned"):
        unpack(tmp_path / "b.tar", tmp_path / "x", "2" * 40, None, nothing)
    (tmp_path / "cut.tar").write_bytes(data[: len(data) // 2])
    with pytest.raises(SparkloomError, match=r"cut or damaged|lacks|wrong bytes"):
        unpack(tmp_path / "cut.tar", tmp_path / "x", REVISION, None, nothing)
    at = data.index(content[A][-200:])
    (tmp_path / "bad.tar").write_bytes(data[:at] + b"\xaa" + data[at + 1 :])
    with pytest.raises(SparkloomError, match="wrong bytes"):
        unpack(tmp_path / "bad.tar", tmp_path / "y", REVISION, None, nothing)
    with tarfile.open(tmp_path / "other.tar", "w"):
        pass
    for name in ("other.tar", "absent.tar"):
        with pytest.raises(SparkloomError):
            unpack(tmp_path / name, tmp_path / "z", REVISION, None, nothing)


def test_a_damaged_folder_makes_no_bundle(tmp_path, place, content):
    (place.folder / A).write_bytes(content[A][:-1] + b"!")
    with pytest.raises(SparkloomError) as caught:
        pack(place, pinned(content), tmp_path / "b.tar", None, nothing)
    assert caught.value.code == 3
    assert not list(tmp_path.glob("*b.tar*"))


@pytest.fixture
def cluster(tmp_path, place, content):
    save_manifest(place.folder / "sparkloom-manifest.json", pinned(content))
    path = tmp_path / "cluster.json"
    nodes = [
        {"name": "head", "role": "head", "fabric": {"addresses": FABRIC}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2", "192.168.101.2"]}},
    ]
    model = {"repo": REPO, "revision": REVISION, "path": str(place.folder)}
    path.write_text(json.dumps({"nodes": nodes, "model": model, "drafter": {"kind": "none"}}))
    return path


def weights(capsys, *args):
    code = run(["weights", *map(str, args), "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_line_with_a_cluster_file(tmp_path, capsys, cluster, place):
    code, out = weights(capsys, "status", cluster)
    assert (code, out["targets"][0]["complete"]) == (0, False)
    assert weights(capsys, "status", cluster, "--strict")[0] == 1
    code, out = weights(capsys, "verify", cluster)
    assert (code, out["targets"][0]["complete"]) == (0, True), out
    assert weights(capsys, "status", cluster, "--strict")[0] == 0
    code, out = weights(capsys, "bundle", cluster, "--out", tmp_path / "b.tar")
    assert (code, out["files"]) == (0, 4)
    args = ["--repo", REPO, "--revision", REVISION, "--path", tmp_path / "new"]
    code, out = weights(capsys, "fetch", *args, "--from", tmp_path / "b.tar")
    assert code == 0
    assert weights(capsys, "status", *args, "--strict")[0] == 0
    (place.folder / A).unlink()
    code, out = weights(capsys, "verify", cluster)
    assert code == 3
    assert {"path": A, "status": "missing", "note": ""} in out["targets"][0]["verdicts"]
    code, out = weights(capsys, "serve", cluster, "--node", "head")
    assert code == 3
    assert weights(capsys, "serve", cluster, "--node", "head", "--bind", "0.0.0.0")[0] == 2
    code, out = weights(capsys, "serve", cluster, "--node", "head", "--nfs")
    assert "192.168.100.0/24" in out["exports"][0]["exports"]


def test_the_command_line_against_a_hub(tmp_path, capsys, hub, content):
    token = tmp_path / "token"
    token.write_text("hf_topsecret")
    args = ["--repo", REPO, "--revision", REVISION, "--path", tmp_path / "new"]
    hub.moods[A].append("cut:8000")
    code, out = weights(capsys, "fetch", *args, "--endpoint", hub.url, "--token-file", token)
    assert code == 0
    assert sorted(out["targets"][0]["fetched"]) == sorted(content)
    assert weights(capsys, "verify", *args, "--online", "--endpoint", hub.url)[0] == 0
    assert all(h.get("Authorization") in ("Bearer hf_topsecret", None) for _, h in hub.requests)
    hub.always[A] = "corrupt"
    (tmp_path / "new" / A).unlink()
    code = run(["weights", "fetch", *map(str, args), "--endpoint", hub.url, "--token-file", str(token)])
    caught = capsys.readouterr()
    assert code == 3
    assert "hf_topsecret" not in caught.out + caught.err


@pytest.mark.parametrize(
    "args",
    [
        ["status"],
        ["fetch", "--repo", REPO],
        ["fetch", "--repo", REPO, "--revision", "main", "--path", "/tmp/x"],
        ["status", "--repo", REPO, "--revision", REVISION, "--path", "/tmp/x", "--which", "moon"],
    ],
)
def test_usage_errors(capsys, args):
    code, out = weights(capsys, *args)
    assert code == 2
    assert out["error"]["mend"]

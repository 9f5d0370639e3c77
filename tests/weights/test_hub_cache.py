"""A cache that the hub's own client made is verified in place."""

from __future__ import annotations

import json

import pytest
from fixtures.fake_hub import REPO, REVISION

from sparkloom.cli.main import run

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def cache(tmp_path, hub, content):
    from huggingface_hub import hf_hub_download

    for name in content:
        hf_hub_download(
            REPO, name, revision=REVISION, cache_dir=tmp_path / "hub", endpoint=hub.url, token=False
        )
    return tmp_path / "hub"


def verify(capsys, path, *args):
    args = ["--repo", REPO, "--revision", REVISION, "--path", path, "--format", "json", *args]
    code = run(["weights", "verify", *map(str, args)])
    return code, json.loads(capsys.readouterr().out)


def test_a_partial_cache_is_not_complete(cache, capsys):
    snapshot = cache / f"models--{REPO.replace('/', '--')}" / "snapshots" / REVISION
    (snapshot / SHARD).unlink()
    args = ["--repo", REPO, "--revision", REVISION, "--path", str(cache), "--format", "json"]
    assert run(["weights", "status", *args]) == 3
    (row,) = json.loads(capsys.readouterr().out)["targets"]
    assert not row["complete"]
    assert {"path": SHARD, "status": "missing", "note": ""} in row["verdicts"]


def test_a_folder_that_cannot_be_written_is_verified_all_the_same(cache, capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sparkloom.weights.verify.save_receipt", refuse)
    code, out = verify(capsys, cache)
    assert code == 0
    assert "the receipt cannot be written" in json.dumps(out["findings"])


def test_a_cache_of_the_hubs_client_is_good_as_it_is(cache, capsys, hub):
    snapshot = cache / f"models--{REPO.replace('/', '--')}" / "snapshots" / REVISION
    assert (snapshot / SHARD).is_symlink()
    code, out = verify(capsys, cache, "--online", "--endpoint", hub.url)
    assert (code, out["verdict"], out["targets"][0]["complete"]) == (0, "ok", True), out
    hub.requests.clear()
    code, out = verify(capsys, cache)  # the links name the hashes: no network is needed
    assert (code, out["targets"][0]["complete"]) == (0, True)
    assert hub.requests == []
    blob = (snapshot / SHARD).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    code, out = verify(capsys, cache)
    assert code == 3
    assert out["targets"][0]["verdicts"][0] | {"note": ""} == {"path": SHARD, "status": "corrupt", "note": ""}
    blob.unlink()
    code, out = verify(capsys, cache, "--online", "--endpoint", hub.url)
    assert code == 3
    assert out["targets"][0]["verdicts"][0]["status"] == "dangling"

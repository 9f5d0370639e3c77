"""Fetching from a hub that cuts, truncates, stalls, ignores ranges, lies and moves."""

from __future__ import annotations

import hashlib

import pytest
from fixtures.fake_hub import REPO, REVISION, FakeHub

from sparkloom.errors import Exit, SparkloomError
from sparkloom.weights.download import Options
from sparkloom.weights.fetch import fetch, locked
from sparkloom.weights.hashing import RateLimit
from sparkloom.weights.hub import Source, check_revision, read_token, resolve
from sparkloom.weights.manifest import MANIFEST_NAME, load_manifest
from sparkloom.weights.receipt import load_receipt

SHARD = "model-00001-of-00002.safetensors"


def whole(folder, content):
    return all((folder / name).read_bytes() == data for name, data in content.items())


def test_everything_is_fetched_once_and_kept_afterwards(tmp_path, hub, source, manifest, options, content):
    done = fetch(manifest, tmp_path, [source], options)
    assert whole(tmp_path, content)
    assert sorted(done.fetched) == sorted(content)
    assert load_manifest(tmp_path / MANIFEST_NAME) == manifest
    assert not (tmp_path / ".sparkloom/parts").exists()
    before = len(hub.requests)
    again = fetch(manifest, tmp_path, [source], options)
    assert (again.fetched, again.bytes) == ((), 0)
    assert len(hub.requests) == before


@pytest.mark.parametrize("number", [1, 1000, 40_000])
def test_a_cut_download_goes_on_at_the_byte_where_it_ended(
    tmp_path, hub, source, manifest, options, content, number
):
    hub.moods[SHARD].append(f"cut:{number}")
    fetch(manifest, tmp_path, [source], options)
    assert whole(tmp_path, content)
    ranges = [headers.get("Range") for headers in hub.asked(SHARD)]
    assert ranges[0] is None
    assert ranges[-1].startswith("bytes=")
    assert len(ranges) == 2


def test_a_killed_run_is_taken_up_by_the_next(tmp_path, hub, source, manifest, content):
    hub.always[SHARD] = "cut:5000"
    stingy = Options(stall_s=0.3, attempts=1, backoff_s=0.001)
    hub.moods[SHARD].extend(["cut:20000", "cut:0"])
    with pytest.raises(SparkloomError) as caught:
        fetch(manifest, tmp_path, [source], stingy, jobs=1)
    assert caught.value.code == Exit.NETWORK
    assert "what is there is kept" in caught.value.mend
    part = tmp_path / ".sparkloom/parts" / manifest.entry(SHARD).sha256
    have = part.stat().st_size
    assert have > 0
    hub.requests.clear()
    hub.always.clear()
    hub.moods.clear()
    fetch(manifest, tmp_path, [source], Options(stall_s=0.3, attempts=1))
    assert hub.asked(SHARD)[0]["Range"] == f"bytes={have}-"
    assert whole(tmp_path, content)


@pytest.mark.parametrize("mood", ["truncate:3000", "stall:3000", "silent", "status:503", "status:429"])
def test_a_single_failure_is_survived(tmp_path, hub, source, manifest, options, content, mood):
    hub.moods[SHARD].append(mood)
    fetch(manifest, tmp_path, [source], options)
    assert whole(tmp_path, content)


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ("silent", "no byte for"),
        ("status:404", "HTTP 404"),
        ("status:403", "wants a login"),
        ("status:500", "HTTP 500"),
        ("long", "more than the published"),
    ],
)
def test_a_hub_that_never_delivers_ends_in_one_clear_error(
    tmp_path, hub, source, manifest, options, mood, words
):
    hub.always[SHARD] = mood
    with pytest.raises(SparkloomError) as caught:
        fetch(manifest, tmp_path, [source], options)
    assert caught.value.code == Exit.NETWORK
    assert words in caught.value.detail
    assert not (tmp_path / SHARD).exists()


def test_a_hub_without_ranges_starts_over_and_ends(tmp_path, hub, source, manifest, options, content):
    hub.moods[SHARD].append("cut:9000")
    hub.always[SHARD] = "norange"
    fetch(manifest, tmp_path, [source], options)
    assert whole(tmp_path, content)


def test_wrong_bytes_never_get_the_files_name(tmp_path, hub, source, manifest, options):
    hub.always[SHARD] = "corrupt"
    with pytest.raises(SparkloomError) as caught:
        fetch(manifest, tmp_path, [source], options)
    assert caught.value.code == Exit.CHECK
    assert "is published" in caught.value.detail
    assert not (tmp_path / SHARD).exists()


def test_wrong_bytes_of_an_earlier_run_are_dropped(tmp_path, hub, source, manifest, options, content):
    part = tmp_path / ".sparkloom/parts" / manifest.entry(SHARD).sha256
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    fetch(manifest, tmp_path, [source], options)
    assert whole(tmp_path, content)


def test_the_next_source_helps(tmp_path, hub, source, manifest, options, content):
    hub.always[SHARD] = "status:404"
    with FakeHub() as second:
        second.add(content, "mirror/copy", "main")
        done = fetch(manifest, tmp_path, [source, Source(second.url, "mirror/copy", "main")], options)
        assert whole(tmp_path, content)
        assert SHARD in done.fetched
        assert len(second.requests) == 1


def test_a_mirror_that_moved_is_caught_by_the_hash(tmp_path, hub, manifest, options, content):
    hub.add({**content, SHARD: content[SHARD][:-1] + b"!"}, "mirror/copy", "main")
    with pytest.raises(SparkloomError) as caught:
        fetch(manifest, tmp_path, [Source(hub.url, "mirror/copy", "main")], options)
    assert caught.value.code == Exit.CHECK


def test_files_that_are_there_are_hashed_and_kept_or_replaced(tmp_path, source, manifest, options, content):
    (tmp_path / SHARD).write_bytes(content[SHARD])
    (tmp_path / "config.json").write_bytes(b"x" * len(content["config.json"]))
    done = fetch(manifest, tmp_path, [source], options)
    assert SHARD in done.kept
    assert "config.json" in done.fetched
    assert load_receipt(tmp_path).lines[SHARD].hash == hashlib.sha256(content[SHARD]).hexdigest()


def test_prune_removes_foreign_shards_only(tmp_path, source, manifest, options):
    (tmp_path / "old.safetensors").write_bytes(b"1")
    (tmp_path / "notes.txt").write_bytes(b"1")
    done = fetch(manifest, tmp_path, [source], options, prune=True)
    assert done.pruned == ("old.safetensors",)
    assert (tmp_path / "notes.txt").exists()


def test_two_fetches_do_not_share_a_folder(tmp_path, source, manifest, options):
    with locked(tmp_path), pytest.raises(SparkloomError, match="another process") as caught:
        fetch(manifest, tmp_path, [source], options)
    assert caught.value.code == Exit.RESOURCE


def test_a_full_disk_is_refused_before_the_first_byte(tmp_path, hub, source, manifest, options, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1000))
    hub.requests.clear()
    with pytest.raises(SparkloomError, match="the disk has") as caught:
        fetch(manifest, tmp_path, [source], options)
    assert caught.value.code == Exit.RESOURCE
    assert hub.requests == []


def test_the_token_goes_to_the_hub_and_not_to_its_storage(tmp_path, hub, content, options):
    with FakeHub() as storage:
        storage.add(content)
        hub.redirect_to = storage.url.replace("127.0.0.1", "localhost")
        source = Source(hub.url, REPO, REVISION)
        secret = Options(stall_s=2, attempts=2, backoff_s=0.001, token="hf_secretsecret")
        fetch(resolve(source, secret.token), tmp_path, [source], secret)
        assert all(h.get("Authorization") == "Bearer hf_secretsecret" for _, h in hub.requests)
        assert storage.requests
        assert not any("Authorization" in h for _, h in storage.requests)
    assert "hf_secretsecret" not in repr(secret)


def test_token_files(tmp_path):
    path = tmp_path / "token"
    path.write_text("hf_abc\n")
    assert read_token(path) == "hf_abc"
    path.write_text(" \n")
    with pytest.raises(SparkloomError, match="empty"):
        read_token(path)
    with pytest.raises(SparkloomError, match="cannot read"):
        read_token(tmp_path / "absent")


@pytest.mark.parametrize(
    ("repo", "revision", "status", "words"),
    [
        (REPO, "2" * 40, 200, "does not have"),
        ("acme/unknown", REVISION, 200, "does not have"),
        (REPO, REVISION, 500, "answered 500"),
    ],
)
def test_resolver_failures_are_clear(hub, repo, revision, status, words):
    hub.api_status = status
    with pytest.raises(SparkloomError, match=words) as caught:
        resolve(Source(hub.url, repo, revision), None)
    assert caught.value.code == Exit.NETWORK
    assert caught.value.mend


def test_a_hub_that_answers_with_another_revision_is_refused(hub, source):
    hub.api_sha = "3" * 40
    with pytest.raises(SparkloomError, match="the hub answered with"):
        resolve(source, None)


def test_a_hub_that_lists_a_path_outside_is_refused(hub, source, content):
    hub.add({**content, "../evil": b"1"})
    with pytest.raises(SparkloomError, match="unsafe path"):
        resolve(source, None)


def test_nobody_listens():
    with pytest.raises(SparkloomError) as caught:
        resolve(Source("http://127.0.0.1:9", REPO, REVISION), None, 2)
    assert caught.value.code == Exit.NETWORK


@pytest.mark.parametrize("revision", ["main", "v1.0", "1" * 39, "A" * 40, ""])
def test_what_moves_is_no_pin(revision):
    with pytest.raises(SparkloomError) as caught:
        check_revision(revision)
    assert caught.value.code == Exit.USAGE


def test_the_rate_limit_spreads_bytes_over_time():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    limit = RateLimit(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        limit.spend(500)
    assert 4.5 <= now[0] <= 5.0
    RateLimit(None, sleep=sleep).spend(10**12)
    assert now[0] <= 5.0

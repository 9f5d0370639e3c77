"""Verification: exactly the pinned snapshot, file by file, and no second reading."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from fixtures import tiny_checkpoint
from fixtures.fake_hub import REPO, REVISION

from sparkloom.errors import SparkloomError
from sparkloom.findings import Level, worst
from sparkloom.weights.hashing import RateLimit, open_unbuffered
from sparkloom.weights.manifest import FileEntry, Manifest, load_manifest, make_manifest, save_manifest
from sparkloom.weights.places import Place, find_place
from sparkloom.weights.report import status_target, verify_target
from sparkloom.weights.targets import Target
from sparkloom.weights.verify import verdict_findings, verify

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def manifest_of(content, revision=REVISION):
    entries = [FileEntry(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in content.items()]
    return make_manifest(REPO, revision, entries)


@pytest.fixture
def content():
    return tiny_checkpoint.files()


@pytest.fixture
def folder(tmp_path, content):
    return tiny_checkpoint.write(tmp_path / "weights", content)


def statuses(verdicts):
    return {v.path: v.status for v in verdicts}


class Counting:
    """Opens files and counts what is read."""

    def __init__(self):
        self.opened, self.bytes = [], 0

    def __call__(self, path):
        self.opened.append(path.name)
        self.bytes += path.stat().st_size
        return open_unbuffered(path)


def test_a_second_verification_reads_metadata_only(folder, content):
    manifest, opener = manifest_of(content), Counting()
    first = verify(Place(folder), manifest, opener=opener)
    assert set(statuses(first).values()) == {"ok"}
    assert opener.bytes == manifest.bytes
    opener = Counting()
    second = verify(Place(folder), manifest, opener=opener)
    assert set(statuses(second).values()) == {"receipt"}
    assert opener.bytes == 0


def test_a_changed_time_or_size_voids_the_receipt(folder, content):
    manifest = manifest_of(content)
    verify(Place(folder), manifest)
    os.utime(folder / A, ns=(1, 1))
    opener = Counting()
    assert statuses(verify(Place(folder), manifest, opener=opener))[A] == "ok"
    assert opener.opened == [A]
    (folder / B).write_bytes(b"x")
    assert statuses(verify(Place(folder), manifest))[B] == "short"


def test_a_receipt_of_other_content_vouches_for_nothing(folder, content):
    verify(Place(folder), manifest_of(content))
    stat = (folder / A).stat()
    changed = content[A][:-1] + bytes([content[A][-1] ^ 1])
    (folder / A).write_bytes(changed)
    os.utime(folder / A, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    pinned = manifest_of({**content, A: changed})
    assert statuses(verify(Place(folder), pinned))[A] == "ok"  # hashed: the receipt has another hash
    (folder / ".sparkloom/receipt.json").write_text("{")
    assert set(statuses(verify(Place(folder), pinned)).values()) == {"ok"}


def test_every_file_that_is_not_as_pinned_is_named(folder, content):
    manifest = manifest_of(content)
    (folder / A).write_bytes(content[A][:-1] + b"!")
    (folder / B).unlink()
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("nowhere")
    (folder / "model.safetensors.index.json").write_bytes(content["model.safetensors.index.json"] + b" ")
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"1")
    (folder / "notes.txt").write_text("mine")
    verdicts = verify(Place(folder), manifest)
    assert statuses(verdicts) == {
        A: "corrupt",
        B: "missing",
        "config.json": "dangling",
        "model.safetensors.index.json": "long",
        "model-00003-of-00003.safetensors": "extra",
        "notes.txt": "extra",
    }
    findings = verdict_findings(verdicts, Place(folder))
    assert [str(f.level) for f in findings] == ["fail", "fail", "warn"]
    text = "\n".join(f.detail for f in findings)
    for name in statuses(verdicts):
        assert name in text


def cache(base: Path, content: dict[str, bytes], revision: str = REVISION) -> Path:
    """A hub cache: blobs named by hash, links in the snapshot."""
    root = base / f"models--{REPO.replace('/', '--')}"
    for name, data in content.items():
        blob = root / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = root / "snapshots" / revision / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../blobs/{blob.name}")
    return root


def target(path, revision=REVISION):
    return Target("model", REPO, revision, path)


def test_a_moved_ref_does_not_matter(tmp_path, content):
    root = cache(tmp_path, content)
    (root / "refs").mkdir()
    (root / "refs/main").write_text("9" * 40)
    for path in (tmp_path, root):
        row, findings = verify_target(target(path), target(path).known_manifest())
        assert worst(findings) is Level.ok, findings
        assert row["complete"]
    assert "which is not in this cache" in find_place(tmp_path, REPO, REVISION).notes[0]


def test_only_another_snapshot_is_there(tmp_path, content):
    root = cache(tmp_path, content, "8" * 40)
    (root / "refs").mkdir()
    (root / "refs/main").write_text("8" * 40)
    row, findings = status_target(target(tmp_path))
    assert findings[0].level is Level.fail
    assert "8" * 40 in findings[0].detail
    assert not row["complete"]


def test_a_cache_with_a_dangling_link_a_short_blob_and_a_stale_link(tmp_path, content):
    root = cache(tmp_path, content)
    snapshot = root / "snapshots" / REVISION
    manifest = manifest_of(content)
    (snapshot / A).resolve().unlink()
    short = (snapshot / B).resolve()
    short.write_bytes(content[B][:100])
    stale = content["config.json"].replace(b"mcg", b"abc")
    other = root / "blobs" / hashlib.sha256(stale).hexdigest()
    other.write_bytes(stale)
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(f"../../blobs/{other.name}")
    (snapshot / "extra.safetensors").symlink_to(f"../../blobs/{other.name}")
    found = statuses(verify(find_place(tmp_path, REPO, REVISION), manifest))
    assert found[A] == "dangling"
    assert found[B] == "short"
    assert found["config.json"] == "stale"
    assert found["extra.safetensors"] == "extra"


def test_a_cache_is_never_written(tmp_path, content):
    from sparkloom.weights.download import Options
    from sparkloom.weights.obtain import obtain

    cache(tmp_path, content)
    with pytest.raises(SparkloomError, match="hub cache"):
        obtain(target(tmp_path), ["http://127.0.0.1:9"], Options())


def test_without_a_manifest_the_structure_is_still_checked(folder, content):
    row, findings = verify_target(target(folder), None)
    assert [str(f.level) for f in findings] == ["warn", "ok"]
    (folder / A).write_bytes(content[A][:-10])
    _, findings = verify_target(target(folder), None)
    assert "cut short" in "\n".join(f.detail for f in findings)
    assert not row["complete"]


def test_status_reads_no_data(folder, content):
    save_manifest(folder / "sparkloom-manifest.json", manifest_of(content))
    row, findings = status_target(target(folder))
    assert worst(findings) is Level.warn
    assert (row["files_present"], row["files_verified"], row["complete"]) == (4, 0, False)
    verify(Place(folder), manifest_of(content))
    before = io_bytes()
    row, findings = status_target(target(folder))
    assert row["complete"]
    assert worst(findings) is Level.ok
    assert before is None or io_bytes() - before < manifest_of(content).bytes // 4


def io_bytes():
    """Bytes that this process has read so far, by the kernel's own count."""
    try:
        return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])
    except (OSError, IndexError):
        return None


def test_a_manifest_of_another_revision_is_refused(folder, content):
    save_manifest(folder / "sparkloom-manifest.json", manifest_of(content, "5" * 40))
    with pytest.raises(SparkloomError, match="is pinned"):
        target(folder).known_manifest()
    assert worst(status_target(target(folder))[1]) is Level.fail


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"files": 3}, "files"),
        ({"repo": None}, "repo, revision"),
        ({"files": [3]}, "files[0]"),
        ({"files": [{"path": "../x", "size": 1}]}, "files[0].path"),
        ({"files": [{"path": "/etc/passwd", "size": 1}]}, "files[0].path"),
        ({"files": [{"path": ".sparkloom/lock", "size": 1}]}, "files[0].path"),
        ({"files": [{"path": "a", "size": -1}]}, "files[0].size"),
        ({"files": [{"path": "a", "size": True}]}, "files[0].size"),
        ({"files": [{"path": "a", "size": 1, "sha256": "XY"}]}, "files[0].sha256"),
        ({"files": [{"path": "a", "size": 1}, {"path": "a", "size": 1}]}, "files[1].path"),
    ],
)
def test_wrong_manifests_are_named(tmp_path, change, field):
    import json

    path = tmp_path / "m.json"
    path.write_text(json.dumps({"repo": REPO, "revision": REVISION, "files": []} | change))
    with pytest.raises(SparkloomError) as caught:
        load_manifest(path)
    assert caught.value.field == field
    assert caught.value.mend


def test_a_manifest_survives_writing_and_reading(tmp_path, content):
    manifest = manifest_of(content)
    save_manifest(tmp_path / "m.json", manifest)
    assert load_manifest(tmp_path / "m.json") == manifest
    assert Manifest(REPO, REVISION, ()).bytes == 0


def test_verification_obeys_the_rate_limit(folder, content):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    limit = RateLimit(10_000, clock=lambda: now[0], sleep=sleep)
    verify(Place(folder), manifest_of(content), limit=limit, jobs=1)
    assert now[0] > manifest_of(content).bytes / 10_000 * 0.8

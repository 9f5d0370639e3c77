"""`sparkloom preflight` and `sparkloom capture` end to end, and redaction."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
from fixtures.spark_tree import good_spark, put

from sparkloom.capture import collect, expand, opened, save
from sparkloom.cli.main import run
from sparkloom.errors import SparkloomError
from sparkloom.preflight import CHECKS, context, run_checks
from sparkloom.redact import Redactor
from sparkloom.sysroot import SysRoot


def preflight(capsys, cluster_file, root, *args):
    code = run(
        ["preflight", str(cluster_file), "--node", "head", "--root", str(root), "--format", "json", *args]
    )
    return code, json.loads(capsys.readouterr().out)


def test_a_good_tree_is_ready(tmp_path, capsys, cluster_file):
    root = good_spark().write(tmp_path / "t")
    code, out = preflight(capsys, cluster_file, root, "--strict", "--skip", "weights")
    assert (code, out["verdict"], out["exit_code"]) == (0, "ok", 0), out
    assert {f["level"] for f in out["findings"]} == {"ok"}


def test_warnings_count_under_strict_only_and_a_failure_always(tmp_path, capsys, cluster_file):
    tree = good_spark()
    tree.files["proc/sys/vm/swappiness"] = "60"
    root = tree.write(tmp_path / "t")
    assert preflight(capsys, cluster_file, root, "--skip", "weights")[0] == 0
    assert preflight(capsys, cluster_file, root, "--skip", "weights", "--strict")[0] == 1
    put(root, "commands/nccl-version.txt", "2.28.9")
    code, out = preflight(capsys, cluster_file, root)
    assert code == 3
    failed = [f for f in out["findings"] if f["level"] == "fail"]
    assert {f["check"] for f in failed} == {"nccl", "ledger"}
    assert all(set(f) == {"check", "level", "summary", "detail", "mend"} for f in out["findings"])


def test_an_empty_tree_warns_and_only_the_fabric_fails(tmp_path, capsys, cluster_file):
    (tmp_path / "empty").mkdir()
    code, out = preflight(capsys, cluster_file, tmp_path / "empty")
    assert code == 3
    assert {f["check"] for f in out["findings"] if f["level"] == "fail"} == {"fabric.devices"}


def test_usage_errors(tmp_path, capsys, cluster_file):
    root = good_spark().write(tmp_path / "t")
    assert run(["preflight", str(cluster_file), "--node", "nobody", "--root", str(root)]) == 2
    assert "one of head, worker" in capsys.readouterr().err
    assert run(["preflight", str(cluster_file), "--node", "head", "--only", "moon"]) == 2
    assert run(["preflight", str(cluster_file), "--node", "head", "--root", str(tmp_path / "absent")]) == 2
    assert run(["preflight", str(tmp_path / "absent"), "--node", "head"]) == 4


def test_a_check_that_breaks_is_a_finding_not_a_traceback(pair, tmp_path, monkeypatch):
    from sparkloom.cluster import parse

    monkeypatch.setitem(CHECKS, "kernel", lambda ctx: 1 // 0)
    found = run_checks(context(parse(pair), "head", SysRoot(tmp_path)), only=["kernel", "swap"])
    assert "ZeroDivisionError" in found[0].summary
    assert len(found) == 2


def test_the_running_machine_can_be_checked(capsys, cluster_file):
    skip = [x for name in ("plugin", "runtime", "nccl", "ledger") for x in ("--skip", name)]
    code, out = preflight(capsys, cluster_file, "/", *skip)
    assert code in (0, 1, 3)
    assert not [f for f in out["findings"] if "check itself failed" in f["summary"]]


def test_a_captured_tree_gives_the_same_verdict(tmp_path, capsys, cluster_file):
    root = good_spark().write(tmp_path / "t")
    archive = tmp_path / "out.tar.gz"
    assert run(["capture", str(archive), "--root", str(root), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] > 40
    code, out = preflight(capsys, cluster_file, archive, "--strict", "--skip", "weights")
    assert (code, out["verdict"]) == (0, "ok"), out
    code = run(["fabric", "show", "--root", str(archive), "--address", "192.168.100.1", "--format", "json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["rails"][0]["gid_index"] == 3


UUID = "3f2c1e4d-0a1b-4c2d-8e9f-0123456789ab"
SECRETS = {
    "etc/hostname": "spark-7f3a",
    "proc/cmdline": f"root=UUID={UUID} ip=8.8.8.8 host=spark-7f3a token=hunter2hunter2",
    "proc/driver/nvidia/gpus/000f:01:00.0/information": f"Model: NVIDIA GB10\nGPU UUID: GPU-{UUID}",
    "commands/ip-addr.json": (
        '[{"ifname": "e", "address": "4c:bb:47:01:02:03",'
        ' "addr_info": [{"local": "fe80::4ebb:47ff:fe01:203"}]}]'
    ),
    "commands/ibv_devinfo.txt": "hca_id: mlx5_0\n\tnode_guid:\t4cbb:4703:0001:0203\n\tserial: MT2412X00001",
    "etc/cdi/x.yaml": "env: API_KEY=sk-abcdefghijkl\npath: /home/alice/.cache\nhf: hf_abcdefghijklmnop",
}  # fmt: skip
LEAKS = (
    "spark-7f3a", "hunter2", "8.8.8.8", "4c:bb:47:01:02:03", "4ebb:47ff", "4cbb:4703", "MT2412X00001",
    "sk-abcdefghijkl", "alice", "hf_abcdefghijklmnop", "3f2c1e4d",
)  # fmt: skip


def test_nothing_private_is_in_a_capture(tmp_path):
    tree = good_spark()
    tree.files |= SECRETS
    tree.files["proc/77/status"] = "Name:\tvim\nUid:\t1000\nVmRSS:\t 10 kB\nGroups:\t1000 27"
    root = tree.write(tmp_path / "t")
    done = save(tmp_path / "out.tar", SysRoot(root))
    assert done.files > 40
    with tarfile.open(done.path) as archive:
        texts = {e.name: archive.extractfile(e).read().decode() for e in archive if e.isreg()}
        links = {e.name: e.linkname for e in archive if e.issym()}
    for leak in LEAKS:
        assert not [name for name, text in texts.items() if leak in text], leak
    assert "Uid" not in texts["proc/77/status"]
    assert "192.168.100.1" in texts["proc/net/fib_trie"]  # private addresses are what the checks compare
    assert links["sys/class/net/enp1s0f0np0/device"].endswith("0000:01:00.0")
    assert "fe80:" in texts["sys/class/infiniband/rocep1s0f0/ports/1/gids/0"]


def test_stand_ins_are_the_same_everywhere():
    redactor = Redactor(("spark-7f3a",))
    first, second = "4c:bb:47:01:02:03", "4c:bb:47:01:02:04"
    out = redactor.text(f"{first} {second} {first}").split()
    assert out[0] == out[2] != out[1]
    assert redactor.text("Authorization: Bearer abc.def") == "Authorization: Bearer REDACTED"
    assert redactor.text("580.126.09 and 10.0.0.1") == "580.126.09 and 10.0.0.1"


def test_established_connections_are_left_out(tmp_path):
    root = good_spark().write(tmp_path / "t")
    files, _, skipped = collect(SysRoot(root), Redactor())
    assert len(files["proc/net/tcp"].splitlines()) == 2
    assert "podman-version.txt" in skipped
    assert expand(SysRoot(root), "proc/[0-9]*/status") == ["proc/1/status"]


def test_a_hostile_archive_is_refused(tmp_path):
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("../escape")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(SparkloomError, match="not a usable archive"), opened(path):
        pass
    assert not (tmp_path / "escape").exists()
    path.write_text("no archive")
    with pytest.raises(SparkloomError), opened(path):
        pass


def test_a_place_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkloomError) as caught:
        save(tmp_path / "file" / "out.tar", SysRoot(good_spark().write(tmp_path / "t")))
    assert caught.value.code == 5

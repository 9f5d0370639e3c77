"""Kernel, memory lock, huge pages, swap, reserve, page cache, boot id."""

from __future__ import annotations

import pytest
from fixtures.spark_tree import good_spark, meminfo

from sparkloom.findings import Level
from sparkloom.preflight.boot import boot_changed, record_start, record_stop
from sparkloom.preflight.system import parse_limit
from sparkloom.sysroot import SysRoot

MIB8 = "Max locked memory         8388608              8388608              bytes"


def one(findings, level, *words):
    assert [f.level for f in findings] == [Level(level)], findings
    text = f"{findings[0].summary} {findings[0].mend} {findings[0].detail}"
    for word in words:
        assert word in text
    if level != "ok":
        assert findings[0].mend or "is not known" in text
    return findings[0]


def with_files(**files):
    tree = good_spark()
    for name, text in files.items():
        key = name.replace("__", "/")
        if text is None:
            tree.files.pop(key)
        else:
            tree.files[key] = text
    return tree


@pytest.mark.parametrize(
    ("limits", "level", "words"),
    [
        (MIB8, "fail", "8.0 MiB"),
        ("Max locked memory  8388608  unlimited  bytes", "warn", "soft limit"),
        ("Max locked memory  unlimited  unlimited  bytes", "ok", "unlimited"),
        ("Max open files  1  2  files", "warn", "not known"),
        (None, "warn", "not in this tree"),
    ],
)
def test_memory_lock(check, limits, level, words):
    one(check("memlock", with_files(proc__self__limits=limits)), level, words)


def test_memory_lock_is_not_needed_by_one_node(check, pair):
    tree = with_files(proc__self__limits=MIB8)
    one(check("memlock", tree, nodes=pair["nodes"][:1]), "ok", "not needed")


@pytest.mark.parametrize(
    ("kib", "level"),
    [("67584", "ok"), ("1048576", "warn"), ("4194304", "fail"), (None, "warn"), ("x", "warn")],
)
def test_min_free_kbytes(check, kib, level):
    found = one(check("min_free_kbytes", with_files(proc__sys__vm__min_free_kbytes=kib)), level)
    if kib == "4194304":
        assert "6.2 GiB" in found.summary  # what was measured for a floor of 4 GiB


def test_huge_pages_are_taken_from_the_shared_memory(check):
    text = meminfo().replace("HugePages_Total:       0", "HugePages_Total:       4096")
    one(check("hugepages", with_files(proc__meminfo=text)), "warn", "8.0 GiB")
    one(check("hugepages", with_files()), "ok")


@pytest.mark.parametrize(
    ("info", "swappiness", "level", "words"),
    [
        (meminfo(), "0", "ok", "4.0 GiB"),
        (meminfo(), "60", "warn", "swappiness is 60"),
        (meminfo(SwapTotal=0, SwapFree=0), "0", "warn", "no swap"),
        (meminfo(SwapFree=1 << 20), "0", "warn", "3.0 GiB are swapped out"),
    ],
)
def test_swap(check, info, swappiness, level, words):
    one(check("swap", with_files(proc__meminfo=info, proc__sys__vm__swappiness=swappiness)), level, words)


def test_a_full_page_cache_is_dropped_before_the_start_or_refused(check):
    tree = with_files(proc__meminfo=meminfo(free=3, available=112))
    one(check("page_cache", tree), "ok", "the GPU sees 3.0 GiB", "dropped before the start")
    one(check("page_cache", tree, memory={"drop_page_cache": False}), "fail", "drop_caches")


def test_a_reset_host_is_not_an_exited_worker(check):
    record = "var/lib/sparkloom/rank-boot.json"
    tree = good_spark()
    tree.files[record] = '{"boot_id": "22222222-2222-2222-2222-222222222222", "started": "2026-10-01"}'
    one(check("boot", tree), "warn", "host was reset", "2026-10-01")
    tree.files[record] = '{"boot_id": "11111111-1111-1111-1111-111111111111"}'
    one(check("boot", tree), "ok")
    tree.files[record] = "[]"
    one(check("boot", tree), "ok")
    tree.files["sys/fs/pstore/dmesg-efi-1"] = "panic"
    one(check("boot", tree), "warn", "1 crash records", "dmesg-efi-1")
    assert boot_changed("a", "b\n")
    assert not boot_changed("a", "a\n")
    assert not boot_changed(None, "a")


def test_the_record_is_written_at_a_start_and_gone_after_an_orderly_stop(check, tmp_path):
    tree = good_spark()
    state = tmp_path / "state"
    record_start(state, SysRoot(tree.write(tmp_path / "before")), now=0)
    tree.files["var/lib/sparkloom/rank-boot.json"] = (state / "rank-boot.json").read_text()
    one(check("boot", tree), "ok")
    tree.files["proc/sys/kernel/random/boot_id"] = "22222222-2222-2222-2222-222222222222"
    one(check("boot", tree), "warn", "host was reset", "1970-01-01T00:00:00Z")
    record_stop(state)
    record_stop(state)
    assert not list(state.iterdir())


def test_a_64k_kernel_is_named(check):
    tree = with_files(proc__sys__kernel__osrelease="6.17.0-1014-nvidia-64k")
    one(check("kernel", tree), "warn", "64 KiB")
    one(check("kernel", with_files(proc__sys__kernel__osrelease=None)), "ok", "6.17.0-1014-nvidia")


def test_limits_are_parsed_by_name():
    text = "Max locked memory  1  2  bytes\nMax msgqueue size  3  unlimited  bytes"
    assert parse_limit(text) == (1, 2)
    assert parse_limit(text, "Max msgqueue size") == (3, float("inf"))
    assert parse_limit("") is None

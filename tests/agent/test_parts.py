"""Parts of the agent alone: notify, host facts, cgroup, sameness, state, metrics, commands."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.agent import export, sameness, state
from sparkloom.agent.capacity import cached_conversation_tokens
from sparkloom.agent.cgroup import RankGroup
from sparkloom.agent.host import parse_gpu, read_host, risen
from sparkloom.agent.notify import Notify
from sparkloom.agent.settings import settings_of
from sparkloom.cli.bundle import pack
from sparkloom.cli.main import run
from sparkloom.cluster import parse
from sparkloom.errors import SparkloomError
from sparkloom.sysroot import SysRoot

NODES = [
    {"name": "a", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
    {"name": "b", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
]


def test_the_service_manager_hears_ready_and_status(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
        notify = Notify(env)
        notify.send("READY=1", "STATUS=ready")
        notify.status("two\nlines")
        assert heard.recv(100) == b"READY=1\nSTATUS=ready"
        assert heard.recv(100) == b"STATUS=two lines"
    assert notify.watchdog_s == 60.0
    notify.send("WATCHDOG=1")  # nobody listens any more: no error
    assert Notify({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_s is None
    Notify({}).send("READY=1")


def test_host_facts_of_a_tree(tmp_path: Path) -> None:
    memory = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 300 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
    counters = "sys/class/infiniband/rocep1s0f0/ports/1/hw_counters"
    for name, text in {
        "proc/meminfo": memory,
        "proc/vmstat": "pswpin 7\npswpout 9\n",
        "proc/sys/kernel/random/boot_id": "abc\n",
        f"{counters}/out_of_sequence": "5\n",
        f"{counters}/packet_seq_err": "0\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    host = read_host(SysRoot(tmp_path))
    assert (host.mem_available, host.swap_used, host.swapped_out_pages) == (300 * 1024, 30 * 1024, 9)
    assert host.boot_id == "abc"
    assert host.roce == {"rocep1s0f0/1/out_of_sequence": 5, "rocep1s0f0/1/packet_seq_err": 0}
    assert risen({"a": 1, "b": 5}, {"a": 4, "b": 5, "c": 0}) == {"a": 3}
    assert read_host(SysRoot(tmp_path / "none")).mem_total == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("52.31, 2204, 71\n", {"power_w": 52.31, "clock_mhz": 2204.0, "temperature_c": 71.0}),
        ("[N/A], 2204, 71\n", {"clock_mhz": 2204.0, "temperature_c": 71.0}),
        ("", {}),
    ],
)
def test_gpu_line(text: str, found: dict[str, float]) -> None:
    assert parse_gpu(text) == found


@given(st.text())
def test_any_gpu_text(text: str) -> None:
    parse_gpu(text)


def test_a_group_is_made_where_one_was_delegated(tmp_path: Path) -> None:
    proc, fs = tmp_path / "proc", tmp_path / "fs"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("1:name=systemd:/x\n0::/system.slice/sparkloom-agent.service\n")
    (fs / "system.slice/sparkloom-agent.service").mkdir(parents=True)
    group = RankGroup.make("rank-3", 42, fs=fs, proc=proc)
    assert group.path is not None
    assert (group.path / "cgroup.procs").read_text() == "42"
    (proc / "self/cgroup").write_text("0::/\n")
    assert RankGroup.make("rank-3", 42, fs=fs, proc=proc).path is None
    assert "no cgroup v2" in RankGroup.make("rank-3", 42, fs=fs, proc=tmp_path).text


def test_digest_names_the_part_that_differs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    cluster = parse({"nodes": NODES, "model": {"path": str(tmp_path)}})
    mine = sameness.parts(cluster)
    (tmp_path / "config.json").write_text('{"a": 1}')
    theirs = sameness.parts(cluster)
    assert sameness.differing(mine, theirs) == ["weights"]
    assert sameness.digest_of(mine) != sameness.digest_of(theirs)
    other = parse({"nodes": NODES, "model": {"path": str(tmp_path)}, "api": {"port": 9999}})
    assert sameness.differing(theirs, sameness.parts(other)) == ["cluster"]
    assert {"plugin", "package torch", "package sparkloom"} <= set(mine)


def test_state_survives_and_a_lost_file_takes_its_term_from_the_clock(tmp_path: Path) -> None:
    first = state.load(tmp_path, now=1000.0)
    assert (first.generation, first.term) == (0, 1000)
    first.generation, first.term, first.launched = 7, 1001, 6
    first.save()
    again = state.load(tmp_path, now=5.0)
    assert (again.generation, again.term, again.launched) == (7, 1001, 6)
    (tmp_path / "agent.json").write_text("{half")
    assert state.load(tmp_path, now=2000.0).term == 2000


def test_settings_know_head_and_worker() -> None:
    cluster = parse({"nodes": NODES})
    worker = settings_of(cluster, "b")
    assert worker.head.url == "http://192.168.100.1:8770"
    assert not worker.is_head
    with pytest.raises(SparkloomError, match="no such node"):
        settings_of(cluster, "c")


VIEW = {
    "phase": "ready",
    "ready": True,
    "generation": 3,
    "since_s": 12.0,
    "restarts": {"rank_exit": 2},
    "nodes": [
        {
            "name": "a",
            "alive": True,
            "reachable": True,
            "facts": {
                "host": {
                    "mem_total": 100,
                    "mem_available": 50,
                    "mem_free": 20,
                    "swap_used": 1,
                    "swapped_in_pages": 2,
                    "swapped_out_pages": 3,
                    "roce": {"rocep1s0f0/1/out_of_sequence": 5},
                    "gpu": {"power_w": 50.0},
                },
                "rank": {"memory": 10, "kv_gib": 2.0},
            },
        }
    ],
    "engine": {
        "acceptance": [0.8, 0.5],
        "prefix_hits": 3,
        "prefix_queries": 9,
        "running": 1,
        "waiting": 0,
        "progress_age_s": 0.4,
    },
}


def test_metrics_carry_both_hosts_and_the_pair() -> None:
    text = export.text(lambda: VIEW).decode()
    for line in (
        'sparkloom_phase{phase="ready"} 1.0',
        'sparkloom_phase{phase="gate"} 0.0',
        'sparkloom_restarts_total{cause="rank_exit"} 2.0',
        'sparkloom_host_memory_available_bytes{node="a"} 50.0',
        'sparkloom_roce_errors_total{counter="out_of_sequence",device="rocep1s0f0",node="a",port="1"} 5.0',
        'sparkloom_gpu_power_watts{node="a"} 50.0',
        'sparkloom_draft_acceptance{position="1"} 0.5',
        "sparkloom_prefix_hit_tokens_total 3.0",
    ):
        assert line in text
    assert "framebuffer" not in text
    documented = (Path(__file__).parents[2] / "docs/agent.md").read_text()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert len(names) >= 24
    assert not [name for name in names if f"`{name}`" not in documented]
    assert export.text(dict) == b""


def test_cached_conversation_is_decided_by_the_smaller_rank() -> None:
    glm = parse({"nodes": NODES})
    smaller = cached_conversation_tokens(glm, [14.0, 9.8])
    assert smaller is not None
    assert 0 < smaller < (cached_conversation_tokens(glm, [14.0, None]) or 0)
    other = parse({"nodes": NODES, "model": {"geometry": "checkpoint"}, "serving": {"kv_cache_bytes": 2**30}})
    assert cached_conversation_tokens(other, [14.0]) is None


def test_commands_without_an_agent_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["status"], ["stop"], ["start"], ["logs"], ["bundle", str(tmp_path / "x.tar.gz")]):
        assert run([*command, "--socket", str(tmp_path / "none.sock")]) == 5
        assert "no agent runs here" in capsys.readouterr().err
    assert not (tmp_path / "x.tar.gz").exists()


def test_a_bundle_holds_what_the_nodes_gave() -> None:
    found = {"a": {"files": {"proc/meminfo": "x"}, "classes": []}, "b": {"problem": "silent"}}
    with tarfile.open(fileobj=io.BytesIO(pack(found, {"phase": "x"}))) as archive:
        assert archive.getnames() == ["status.json", "classes.json", "a/proc/meminfo"]
        member = archive.extractfile("status.json")
        assert member is not None
        assert json.load(member) == {"phase": "x"}

"""Whatever a rank does and however it ends, nothing of it stays: no process, namespace or shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from ranks_fakes import FAKE, fake, gone, pids, private, running

from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks import Pair, clear_stale, listener
from sparkloom.ranks.nodes import NETNS, Mode


def leftovers(pair: Pair) -> list[str]:
    return [n for n in os.listdir(NETNS) if n.startswith(pair.run.prefix)] if NETNS.is_dir() else []


def test_stop_ends_the_whole_tree(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "child", "daemon", "stubborn")
    all_pids = pids(rank.log)
    assert len(all_pids) == 4
    assert all(running(p) for p in all_pids)
    assert {p.pid for p in rank.processes()} == set(all_pids)
    assert rank.memory() > 1 << 20
    end = rank.stop()
    assert end.status == 128 + signal.SIGTERM
    assert not any(running(p) for p in all_pids)


def test_second_sigterm_comes(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "deaf")
    pids(rank.log)
    assert rank.stop().status == 0
    assert "SIGTERM 2" in rank.log.read_text()


def test_sigkill_after_both(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "immune", "child")
    all_pids = pids(rank.log)
    assert rank.stop().status == 128 + signal.SIGKILL
    assert not any(running(p) for p in all_pids)


def test_a_stopped_process_is_ended_too(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "child")
    all_pids = pids(rank.log)
    rank.signal_all(signal.SIGSTOP)
    rank.stop()
    assert not any(running(p) for p in all_pids)


def test_sigkilled_main_process_leaves_no_orphan(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "child", "daemon")
    all_pids = pids(rank.log)
    os.kill(all_pids[0], signal.SIGKILL)
    assert rank.wait(10)
    assert not any(running(p) for p in all_pids)
    with pytest.raises(SparkloomError, match="head ended by SIGKILL") as caught:
        pair.check()
    assert caught.value.code == Exit.RANK


def test_sigkilled_keeper_leaves_no_orphan(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "child", "stubborn" if pair.mode == "netns" else "child")
    all_pids = pids(rank.log)
    os.kill(rank.pid, signal.SIGKILL)
    assert pair.close() == []
    assert not any(running(p) for p in all_pids)


def test_shared_memory_is_removed(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "shm")
    pids(rank.log)
    name = next(line.split()[1] for line in rank.log.read_text().splitlines() if line.startswith("shm"))
    where = Path("/dev/shm") / name
    assert where.exists() == (pair.mode == "loopback")  # a namespace node has a /dev/shm of its own
    rank.kill()
    assert rank.wait(10)
    assert not where.exists()


def test_the_first_dead_rank_is_named(pair: Pair, tmp_path: Path) -> None:
    head = fake(pair, tmp_path, name="head")
    worker = fake(pair, tmp_path, "fail", name="worker", node=1)
    assert worker.wait(10)
    os.kill(pids(head.log)[0], signal.SIGKILL)  # falls afterwards
    assert head.wait(10)
    with pytest.raises(
        SparkloomError, match="rank worker ended with status 0: RuntimeError: the model has"
    ) as e:
        pair.check()
    assert e.value.file == str(worker.log)
    assert "EngineCore encountered an issue" in e.value.detail
    assert e.value.mend


def test_command_that_does_not_exist(pair: Pair, tmp_path: Path) -> None:
    rank = pair.start("head", 0, ["/nowhere/python"], log=tmp_path / "head.log")
    end = rank.wait(10)
    assert end is not None
    assert end.status == 127
    assert "cannot run '/nowhere/python'" in rank.tail()


def test_forward_reaches_the_node(pair: Pair, tmp_path: Path) -> None:
    rank = fake(pair, tmp_path, "serve", node=1, name="worker")
    pids(rank.log)
    forward = pair.forward(1, 18000 + os.getpid() % 10000, 0)
    with httpx.Client(base_url=f"http://127.0.0.1:{forward.listen}", trust_env=False, timeout=10) as client:
        for _ in range(3):
            assert client.get("/").text == f"hello from {pair.nodes[1].address}"
    refused = pair.forward(0, 9, 0)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{refused.listen}", trust_env=False)


def test_forward_to_a_taken_port_says_so(pair: Pair) -> None:
    with listener(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SparkloomError, match=f"port {port} of 127.0.0.1 is taken") as caught:
            pair.forward(0, 1, port)
    assert caught.value.code == Exit.RESOURCE


def test_nodes_are_apart(pair: Pair, tmp_path: Path) -> None:
    if pair.mode != "netns":
        pytest.skip("only namespaces keep the nodes apart")
    code = (
        "import os, socket; s = socket.socket(); s.settimeout(2);"
        "print(sorted(n for _, n in socket.if_nameindex()), sorted(os.listdir('/dev/shm')));"
        "print('peer', s.connect_ex(('10.77.0.1', 1)))"
    )
    rank = pair.start("worker", 1, [sys.executable, "-c", code], log=tmp_path / "worker.log")
    rank.wait(10)
    text = rank.log.read_text()
    assert f"['lo', '{pair.run.prefix}b'] []" in text
    assert "peer 111" in text  # refused by the other node: there is a way
    pair.network.cable(False)
    again = pair.start("cut", 1, [sys.executable, "-c", code], log=tmp_path / "cut.log")
    again.wait(10)
    assert "peer 111" not in again.log.read_text()
    assert "peer" in again.log.read_text()


def test_close_leaves_nothing(pair: Pair, tmp_path: Path) -> None:
    all_pids = [
        *pids(fake(pair, tmp_path, "child", name="head").log),
        *pids(fake(pair, tmp_path, "daemon", name="worker", node=1).log),
    ]
    assert pair.close() == []
    assert not any(running(p) for p in all_pids)
    assert leftovers(pair) == []
    assert not pair.run.folder.exists()


OWNER = """
import sys, time
from pathlib import Path
from sparkloom.ranks import Pair, Deadlines
mode, base, log, fake = sys.argv[1:]
pair = Pair(mode, base=Path(base))
pair.start("head", 0, [sys.executable, "-u", fake, "child", "daemon"], log=Path(log),
           deadlines=Deadlines(0.5, 0.5))
print(pair.run.prefix, flush=True)
time.sleep(600)
"""


def test_a_killed_owner_takes_its_ranks_along(mode: Mode, tmp_path: Path) -> None:
    base = private(tmp_path)
    log = tmp_path / "head.log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, mode, str(base), str(log), str(FAKE)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    prefix = owner.stdout.readline().strip()
    all_pids = pids(log)
    assert clear_stale(base) == []  # its owner lives
    owner.kill()
    owner.wait()
    assert gone(*all_pids, seconds=8)
    said = clear_stale(base)
    assert len(said) == 1
    assert "cleared an earlier run" in said[0]
    assert not (NETNS / f"{prefix}a").exists()
    assert list(base.iterdir()) == []


def test_stale_run_whose_keeper_died_too(mode: Mode, tmp_path: Path) -> None:
    base = private(tmp_path)
    log = tmp_path / "head.log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, mode, str(base), str(log), str(FAKE)], stdout=subprocess.PIPE, text=True
    )
    all_pids = pids(log)
    keeper = int(Path(f"/proc/{all_pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(owner.pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    owner.wait()
    time.sleep(0.2)
    with Pair("loopback", base=base) as fresh:  # any later start clears it away
        assert len(fresh.cleared) == 1
    survivors = [p for p in all_pids if running(p)]
    if mode == "loopback" and survivors == all_pids[2:]:
        # A process that left session, environment and parents behind can only be found by its namespace.
        os.kill(all_pids[2], signal.SIGKILL)
        survivors = []
    assert survivors == []

"""Log phases and facts on lines as vLLM and NCCL write them; generations kept and removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.errors import SparkloomError
from sparkloom.logs import RankLog, Shelf, Transport
from sparkloom.logs.phases import of_text, smallest_kv
from sparkloom.pair import RankPhase

HEAD = "\n".join(
    [
        "INFO [parallel_state.py] world_size=2 rank=0 local_rank=0 "
        "distributed_init_method=tcp://192.168.100.1:29501 backend=nccl",
        "INFO [pynccl.py] vLLM is using nccl==2.30.7",
        "spark-a:12 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE",
        "spark-a:12 [0] NCCL INFO Using network IB",
        "INFO [parallel_state.py] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0",
        "INFO [gpu_model_runner.py] Starting to load model /srv/model...",
        "INFO [gpu_model_runner.py] Model loading took 81.25 GiB memory and 68.500000 seconds",
        "INFO [gpu_worker.py] Available KV cache memory: 14.02 GiB",
        "INFO [kv_cache_utils.py] GPU KV cache size: 1,572,073 tokens, 341 blocks",
        "INFO [kv_cache_utils.py] Maximum concurrency for 1,048,576 tokens per request: 1.50x",
        "INFO [shm_broadcast.py] No available shared memory broadcast block found in 60 seconds.",
        "INFO [gpu_model_runner.py] Graph capturing finished in 31 secs, took 1.25 GiB",
        "INFO [core.py] init engine (profile, create kv cache, warmup model) took 71.25 s",
        "INFO:     Application startup complete.",
    ]
)
WORKER = HEAD.replace("rank=0", "rank=1").replace("rank 0 in", "rank 1 in").replace("14.02", "9.80")
SOCKET = "\nspark-b:9 [0] NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.100.2<0>\n"


def test_a_whole_start_of_the_head() -> None:
    log = of_text(HEAD)
    assert log.phase is RankPhase.SERVING
    assert [p for p, _ in log.history] == ["rendezvous", "weights", "kv", "graphs", "serving"]
    assert (log.rank, log.transport, log.nccl) == (0, Transport.IB, "2.30.7")
    assert (log.weights_gib, log.load_seconds) == (81.25, 68.5)
    assert (log.kv_gib, log.kv_tokens, log.max_length, log.concurrency) == (14.02, 1572073, 1048576, 1.5)
    assert (log.graph_seconds, log.graph_gib, log.init_seconds) == (31.0, 1.25, 71.25)
    assert not log.errors  # the 60 s line of shm_broadcast is information


@pytest.mark.parametrize(("lines", "phase"), [(1, "rendezvous"), (5, "weights"), (7, "kv"), (10, "graphs")])
def test_a_start_that_stopped_is_in_the_phase_it_reached(lines: int, phase: str) -> None:
    """P22: the phase that a start hung in."""
    assert of_text("\n".join(HEAD.splitlines()[:lines])).phase == phase


def test_the_smaller_rank_binds() -> None:
    assert smallest_kv(of_text(HEAD), of_text(WORKER)) == 9.80
    assert smallest_kv(RankLog()) is None


def test_sockets_are_seen_and_win_over_a_mention_of_ib() -> None:
    assert of_text(SOCKET).transport is Transport.SOCKET
    assert of_text(HEAD + SOCKET).transport is Transport.SOCKET
    no_ib = "x [0] NCCL INFO NET/IB : No device found.\nx [0] NCCL INFO Using network Socket\n"
    assert of_text(no_ib).transport is Transport.SOCKET


def test_errors_have_a_time_so_that_old_ones_are_not_blamed() -> None:
    log = RankLog()
    log.feed("ConnectionResetError: a client left", 10.0)
    log.feed(
        "(APIServer pid=7) WARNING 12-01 [x.py:2] This can cause errors like `OSError: [Errno 24]`", 499.0
    )
    log.feed("RuntimeError: the real one", 500.0)
    log.feed("EngineDeadError: EngineCore encountered an issue", 501.0)
    assert log.first_error(480.0) == "RuntimeError: the real one"
    assert log.first_error(600.0) == ""


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    of_text(text)


def test_only_the_last_generations_are_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, keep=3)
    for generation in range(1, 8):
        (shelf.new(generation) / "rank.log").write_text(str(generation))
    assert shelf.generations() == [5, 6, 7]
    assert shelf.log().read_text() == "7"
    assert shelf.log(5).read_text() == "5"
    with pytest.raises(SparkloomError) as caught:
        shelf.log(4)
    assert "5, 6, 7" in caught.value.mend
    with pytest.raises(SparkloomError, match="no generation"):
        Shelf(tmp_path / "none").log()

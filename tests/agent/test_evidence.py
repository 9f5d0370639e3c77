"""Classes of failure on short journal and kernel-log texts, written for these tests after users' reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.evidence import Class, classify
from sparkloom.evidence.classify import Texts, ended_cleanly

CUT = """\
2026-10-02T03:11:01 spark-a sparkloom[801]: ready (generation 4)
2026-10-02T03:11:09 spark-a kernel: nvme nvme0: I/O 12 QID 3
"""
ORDERLY = CUT + "2026-10-02T03:12:00 spark-a systemd[1]: Reached target reboot.target - System Reboot.\n"


def kinds(**texts: object) -> list[Class]:
    return [f.kind for f in classify(Texts(**texts))]  # type: ignore[arg-type]


def test_a_journal_that_stops_in_the_middle_is_a_reset() -> None:
    """P21: power or reset."""
    assert not ended_cleanly(CUT)
    found = classify(Texts(journal=CUT, boot_ids=("a", "b"), ended_cleanly=False))
    assert found[0].kind is Class.RESET
    assert "nvme0" in found[0].line
    assert "lost power or was reset" in found[0].summary


def test_an_orderly_restart_is_told_apart() -> None:
    assert ended_cleanly(ORDERLY)
    found = classify(Texts(journal=ORDERLY, boot_ids=("a", "b"), ended_cleanly=True))
    assert "orderly" in found[0].summary


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('earlyoom[612]: sending SIGTERM to process 4711 uid 0 "VLLM::Worker_TP": badness 1200', "earlyoom"),
        (
            "systemd-oomd[500]: Killed /system.slice/sparkloom-agent.service due to memory used",
            "systemd-oomd",
        ),
    ],
)
def test_a_killer_in_user_space_is_named_with_its_victim(line: str, name: str) -> None:
    """P21, P36: an anti-OOM daemon is no crash of the engine."""
    found = classify(Texts(journal=f"2026-10-02T03:11:09 spark-a {line}\n"))[0]
    assert found.kind is Class.FOREIGN_KILLER
    assert found.summary.startswith(name + " killed ")
    assert name in found.mend


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("Out of memory: Killed process 4711 (VLLM::Worker) total-vm:1kB, anon-rss:9kB", Class.KERNEL_OOM),
        ("NVRM: nvAssertFailed: out of memory in uvm_va_block", Class.MEMORY_WEDGE),
        ("INFO: task VLLM::EngineCor:812 blocked for more than 120 seconds.", Class.MEMORY_WEDGE),
        ("mlx5_core 0000:01:00.0: irisc not responding", Class.FABRIC),
        ("pcieport 0002:00:00.0: AER: Uncorrectable (Fatal) error message received", Class.FABRIC),
    ],
)
def test_kernel_lines(kernel: str, kind: Class) -> None:
    """P21: memory wedge, kernel OOM, fabric."""
    assert kinds(kernel=kernel) == [kind]


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("NCCL WARN Call to ibv_modify_qp failed with error No data available", Class.FABRIC),
        ("RuntimeError: Gloo connectFullMesh failed with connection refused", Class.FABRIC),
        ("ncclUnhandledCudaError: Call to CUDA function failed", Class.NCCL),
        ("Timed out after 41 seconds waiting for clients. 1/2 clients joined.", Class.NCCL),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", Class.CONFIG),
        ("vllm: error: argument --dtype: invalid choice", Class.CONFIG),
        ("torch.OutOfMemoryError: CUDA out of memory", Class.ENGINE),
        ("RuntimeError: CUDA error: device-side assert triggered", Class.ENGINE),
    ],
)
def test_lines_of_the_ranks_log(log: str, kind: Class) -> None:
    assert kinds(rank_log=log) == [kind]


def test_the_more_telling_class_comes_first() -> None:
    found = kinds(
        journal="earlyoom[1]: sending SIGKILL to process 12",
        rank_log="EngineDeadError: EngineCore encountered an issue",
    )
    assert found == [Class.FOREIGN_KILLER, Class.ENGINE]


def test_information_is_no_failure() -> None:
    text = "No available shared memory broadcast block found in 60 seconds."
    assert kinds(rank_log=text, journal=ORDERLY) == [Class.UNKNOWN]


@given(st.text(), st.text(), st.text())
def test_any_text_gets_a_class(journal: str, kernel: str, log: str) -> None:
    assert classify(Texts(journal=journal, kernel=kernel, rank_log=log))

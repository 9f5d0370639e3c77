"""What a dead rank's log tells: the cause, not a warning before it nor a consequence after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkloom.ranks import logs

LOG = """(APIServer pid=1) WARNING 12-01 11:00:14 [system_utils.py:255] with error OSError: raise the limit
(EngineCore pid=2) INFO 12-01 11:00:20 [core.py:1] No module named 'triton', going on without
(Worker pid=3) ERROR 12-01 11:00:31 [worker.py:9] torch.cuda.Fault: x
(Worker pid=3) ERROR 12-01 11:00:31 [worker.py:9] {cause}
(EngineCore pid=2) ERROR 12-01 11:00:32 [core.py:5] RuntimeError: Engine core initialization failed
"""


@pytest.mark.parametrize(
    ("cause", "mend"),
    [
        ("OSError: [Errno 98] Address already in use", "another program"),
        ("OSError: [Errno 28] No space left on device", "free some space"),
        ("RuntimeError: Gloo connectFullMesh failed with ...", "VLLM_HOST_IP"),
        ("safetensors.SafetensorError: invalid header", "read the whole log"),
    ],
)
def test_cause_and_mend(tmp_path: Path, cause: str, mend: str) -> None:
    log = tmp_path / "worker.log"
    log.write_text(LOG.format(cause=cause))
    assert logs.first_error(log) == cause
    assert mend in logs.mend(log, 0)


def test_killed_without_a_word(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("INFO all is well\n")
    assert logs.first_error(log) == ""
    assert "SIGKILL" in logs.mend(log, 137)
    assert logs.tail(tmp_path / "none") == ""


def test_tail_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "head.log"
    log.write_text("\n".join(f"line {n}" for n in range(100_000)) + "\n\n")
    assert logs.tail(log, 2) == "line 99998\nline 99999"

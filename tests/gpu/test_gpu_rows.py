"""The matrix's rows on this machine's GPU; skips with one reason where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpumatrix import matrix, models, receipt, rows

REASON = matrix.unfit()
pytestmark = [pytest.mark.gpu, pytest.mark.heavy, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def test_rows_hold(tmp_path: Path) -> None:
    models.make(tmp_path / "models")
    found = matrix.run(rows.select(["base", "exl3", "dflash"]), tmp_path / "out", tmp_path / "models")
    bad = {
        name: [f"{c['check']}: {receipt.seen_in_words(c['seen'])}" for c in one["checks"] if not c["ok"]]
        or one["record"].get("error")
        for name, one in found.items()
        if not one["ok"] and one["state"] != "skipped"
    }
    assert not bad, bad

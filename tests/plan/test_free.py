"""Free memory from meminfo: the fields that matter, and any text gives a value or one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom.errors import SparkloomError
from sparkloom.plan import free

GIB = 1 << 30


def test_clean_cache_counts_when_it_is_dropped(meminfo: Path) -> None:
    full = free.read(meminfo / "cache-full.txt")
    assert full.cuda_free < 3 * GIB
    assert full.free_bytes == pytest.approx(114.8 * GIB, rel=0.01)


def test_clean_cache_does_not_count_when_it_stays(meminfo: Path) -> None:
    kept = free.read(meminfo / "cache-full.txt", drop_page_cache=False)
    assert kept.free_bytes == kept.cuda_free


def test_dirty_pages_cannot_be_dropped(meminfo: Path) -> None:
    assert free.read(meminfo / "dirty-cache.txt").free_bytes < 71 * GIB


def test_a_raised_min_free_is_seen(meminfo: Path) -> None:
    raised = free.read(meminfo / "min-free-4g.txt")
    assert raised.min_free == 4 * GIB
    assert raised.reserve_loss == pytest.approx(6.2 * GIB, rel=0.01)
    assert free.read(meminfo / "idle-headless.txt").reserve_loss == 0


def test_live_tree(tmp_path: Path, meminfo: Path) -> None:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text((meminfo / "idle-headless.txt").read_text())
    (tmp_path / "proc/sys/vm/min_free_kbytes").write_text("67584\n")
    found = free.live(tmp_path)
    assert found.min_free == 67584 * 1024
    assert found.reserve_loss == 0


@pytest.mark.parametrize("missing", ["MemTotal", "MemFree", "MemAvailable"])
def test_a_missing_line_is_named(missing: str, meminfo: Path) -> None:
    lines = (meminfo / "idle-headless.txt").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith(missing))
    with pytest.raises(SparkloomError) as caught:
        free.parse(text, source="pasted.txt")
    assert caught.value.field == missing
    assert caught.value.mend


@given(st.text())
@settings(deadline=None)
def test_any_text(text: str) -> None:
    _value_or_error(text)


NAMES = ["MemTotal", "MemFree", "MemAvailable", "Active(file)", "Dirty", "SReclaimable", "min_free_kbytes"]
LINES = st.builds(
    "{}: {} {}".format,
    st.sampled_from(NAMES),
    st.one_of(st.integers(-5, 1 << 70).map(str), st.text(max_size=5)),
    st.sampled_from(["kB", "", "MB", "kB\r"]),
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=12).map("\n".join))
def test_any_lines(text: str) -> None:
    _value_or_error(text)


def _value_or_error(text: str) -> None:
    try:
        found = free.parse(text, source="pasted.txt")
    except SparkloomError as error:
        assert error.mend  # noqa: PT017
    else:
        assert 0 <= found.free_bytes <= found.total

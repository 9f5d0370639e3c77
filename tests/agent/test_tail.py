"""Following a log: pieces, lines without an end, characters cut in half, truncation, the size limit."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkloom.logs import RankLog, Tail, last_lines
from sparkloom.logs.tail import CHUNK, LONGEST
from sparkloom.pair import RankPhase


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    tail = Tail(path)
    assert list(tail.lines()) == []
    with path.open("ab", buffering=0) as out:
        out.write(b"one\ntw")
        assert list(tail.lines()) == ["one"]
        out.write("o ☃".encode()[:-1])  # in the middle of a character
        assert list(tail.lines()) == []
        out.write("☃".encode()[-1:] + b"\n\xff\xfe\n")
        assert list(tail.lines()) == ["two ☃", "\ufffd\ufffd"]
        out.write(b"no end")
    assert list(tail.lines()) == []
    assert list(tail.lines(final=True)) == ["no end"]
    assert list(tail.lines(final=True)) == []


def test_a_line_longer_than_a_chunk_does_not_hide_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_bytes(b"x" * (2 * CHUNK + 5) + b"\nINFO Application startup complete.\n")
    log, tail, begin = RankLog(), Tail(path), time.monotonic()
    for _ in range(4):
        for line in tail.lines():
            assert len(line) <= LONGEST
            log.feed(line)
    assert log.phase is RankPhase.SERVING
    assert time.monotonic() - begin < 30.0  # no expression runs away on a long word


def test_a_log_beyond_its_limit_is_cut_and_its_end_kept(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    tail = Tail(path, limit=100, keep=20)
    with path.open("ab", buffering=0) as out:  # the rank appends, so it goes on after the cut
        out.write(b"a" * 90 + b"\n")
        assert not tail.trim()
        out.write(b"b" * 30 + b"\n")
        assert len(list(tail.lines())) == 2
        assert tail.trim()
        assert path.stat().st_size == 0
        assert (tmp_path / "rank.log.1").read_bytes() == b"b" * 19 + b"\n"
        out.write(b"after\n")
    assert list(tail.lines()) == ["after"]


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_text("a long first line\n")
    tail = Tail(path)
    assert len(list(tail.lines())) == 1
    path.write_text("new\n")
    assert list(tail.lines()) == ["new"]


def test_the_last_lines_of_a_large_file_cost_a_window_only(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_text("".join(f"line {n} ☃\n" for n in range(1000)))
    assert last_lines(path, 2) == ["line 998 ☃", "line 999 ☃"]
    assert last_lines(path, 1000, window=40)[-1] == "line 999 ☃"
    assert len(last_lines(path, 1000, window=40)) < 5


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_any_bytes_in_any_pieces_give_the_same_lines(tmp_path_factory: object, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "rank.log"  # type: ignore[attr-defined]
    tail, found = Tail(path), []
    with path.open("ab", buffering=0) as out:
        for piece in pieces:
            out.write(piece)
            found += list(tail.lines())
    found += list(tail.lines(final=True))
    whole = b"".join(pieces)
    assert "".join(found).replace("\ufffd", "") == "".join(
        whole.decode(errors="replace").splitlines()
    ).replace("\ufffd", "")

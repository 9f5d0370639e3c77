"""Windows, divergence, resumption and the rules for long answers."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.errors import SparkloomError
from sparkloom.quality import collect, longform, windows
from sparkloom.quality.divergence import compare, point


def log_softmax(x: np.ndarray) -> dict[int, float]:
    y = x - x.max()
    y -= math.log(np.exp(y).sum())
    return dict(enumerate(y.tolist()))


def top(full: dict[int, float], n: int) -> dict[int, float]:
    return dict(sorted(full.items(), key=lambda kv: -kv[1])[:n])


@given(st.integers(0, 10_000), st.integers(2, 30))
def test_truncated_divergence_is_a_lower_bound_and_exact_when_whole(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = log_softmax(rng.normal(size=30) * 3), log_softmax(rng.normal(size=30) * 3)
    exact = sum(math.exp(p[i]) * (p[i] - q[i]) for i in p)
    assert point(p, q).kld == pytest.approx(exact, abs=1e-9)
    part = point(top(p, n), top(q, n))
    assert -1e-12 <= part.kld <= exact + 1e-9
    assert point(p, p).kld == pytest.approx(0, abs=1e-12)


def test_compare_counts_agreement_by_window() -> None:
    a = {0: math.log(0.75), 1: math.log(0.25)}
    b = {0: math.log(0.25), 1: math.log(0.75)}
    teacher = {0: [a] * 3, 1: [a] * 5}
    got = compare(teacher, {0: [a] * 3, 1: [b] * 5})
    assert (got.windows, got.positions, got.same_top) == (2, 8, 3 / 8)
    assert got.kld_low <= got.kld_mean <= got.kld_high
    assert got.kld_max == pytest.approx(0.5 * math.log(3))


def test_seal_notices_a_change(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    windows.cut(list(range(100)), 4, 20, "text").save(path)
    assert windows.load(path).rows[1][:2] == (20, 21)
    value = json.loads(path.read_text())
    value["rows"][0][0] = 5
    path.write_text(json.dumps(value))
    with pytest.raises(SparkloomError, match="changed after they were sealed"):
        windows.load(path)
    with pytest.raises(SparkloomError, match="need 80"):
        windows.cut([1] * 79, 4, 20, "text")


class Stub:
    """Answers like a server and dies on the third window of its first life."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.life = 3

    async def ask(self, _: Any, row: tuple[int, ...], top: int) -> collect.Positions:
        self.life -= 1
        if self.life == 0:
            raise ConnectionError
        self.asked.append(row[0])
        return [{t: -0.1, t + 1: -2.5} for t in row[1:]]


def test_collection_resumes_and_drops_a_cut_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub, out = Stub(), tmp_path / "out.jsonl"
    monkeypatch.setattr(collect, "ask", stub.ask)
    w = windows.cut(list(range(40)), 4, 10, "text")
    server: Any = None
    with pytest.raises(ConnectionError):
        asyncio.run(collect.collect(server, w, 2, out, lambda *_: None))
    out.write_bytes(out.read_bytes() + b'{"seal": "ab')
    done = asyncio.run(collect.collect(server, w, 2, out, lambda *_: None))
    assert sorted(done) == [0, 1, 2, 3]
    assert stub.asked == [0, 10, 20, 30]
    assert len(collect.read_done(out, w, 2)) == 4
    with pytest.raises(SparkloomError, match="other windows"):
        collect.read_done(out, w, 3)


@pytest.mark.parametrize("bad", [None, [], [None], [None, None], [None, {}], "x"])
def test_replies_without_logprobs(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"prompt_logprobs|log-probabilities"):
        collect.parse_prompt_logprobs(bad)


def test_count_and_table_rules() -> None:
    good = " ".join(map(str, range(1, 11)))
    rule = longform.count_sequence(10)
    assert rule(good).ok
    assert rule(good.replace("7", "8")).seen == "7 expected, 8 seen at place 7"
    assert not rule("1 2 3").ok
    assert not rule("").ok
    rows = "\n".join(f"| {n} | {n * n} |" for n in range(1, 6))
    assert longform.table_of_squares(5)("| n | n squared |\n|---|---|\n" + rows).ok
    assert not longform.table_of_squares(5)(rows.replace("16", "15")).ok


def test_collapse_and_loops_are_told_from_legitimate_repetition() -> None:
    assert longform.repeated_character("fine " + "!" * 40)
    assert longform.repeated_character("a" * 32)
    assert longform.repeated_character("| a |\n|" + "-" * 80 + "|\n" + "=" * 100) is None
    assert longform.loop("so " + "the balcony of the " * 6)
    assert longform.loop("\n".join(f"| {n} | {n * n} |" for n in range(60))) is None
    assert longform.loop("la la la") is None
    task = longform.tasks(200)[0]
    assert "U+FFFD" in longform.judge(task, "1 2 \ufffd").seen


def test_needles_are_hidden_at_their_depth() -> None:
    for task in longform.tasks(400)[2:]:
        share = task.prompt.index("harbour gate") / len(task.prompt)
        assert abs(share - int(task.name.split("-")[1]) / 100) < 0.1

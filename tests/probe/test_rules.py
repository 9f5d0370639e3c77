"""Pure parts: collapse, acceptance, metrics text, the list of checks, the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.cli.main import run
from sparkloom.errors import SparkloomError
from sparkloom.probe import load_checks, pick, rules
from sparkloom.probe.checks import parse_checks
from sparkloom.probe.metrics import Engine, Health, acceptance, parse
from sparkloom.testing.fake_openai import PROSE, FakeServer, State


@pytest.mark.parametrize(
    ("text", "collapsed"),
    [
        ("!" * 60, True),
        ("The answer is " + "ha" * 80, True),
        ("ok ok " * 60, True),
        (PROSE, False),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", False),
        ("|" + "-" * 20 + "|" + "-" * 20 + "|\n| name | value |\n" + PROSE, False),
        (" ".join(map(str, range(200))), False),
        ("!!!!", False),
    ],
)
def test_collapse_is_told_from_tables_and_counting(text: str, collapsed: bool) -> None:
    assert bool(rules.collapse(text)) is collapsed


@given(st.text())
def test_collapse_takes_any_text(text: str) -> None:
    rules.collapse(text)


@pytest.mark.parametrize(
    ("drafts", "accepted", "health"),
    [
        (100, (80, 50, 20), Health.HEALTHY),
        (100, (0, 0, 0), Health.ZERO),
        (100, (100, 100, 100), Health.PINNED),
        (100, (100, 60, 40), Health.HEALTHY),
        (63, (0, 0, 0), Health.FEW),
        (100, (30, 5, 1), Health.DECAYED),
    ],
)
def test_acceptance_verdicts(drafts: int, accepted: tuple[int, ...], health: Health) -> None:
    """D10, P56: healthy, zero, pinned at 1.00, decayed, too few."""
    before = Engine(drafts=10, draft_tokens=30, accepted=15, accepted_by_position=(8.0, 5.0, 2.0))
    after = Engine(
        drafts=10 + drafts,
        draft_tokens=30 + 3 * drafts,
        accepted=15 + sum(accepted),
        accepted_by_position=(8.0 + accepted[0], 5.0 + accepted[1], 2.0 + accepted[2]),
    )
    reference = [0.75] if health is Health.DECAYED else []
    assert acceptance(before, after, reference=reference).health is health


def test_metrics_of_vllm_are_read() -> None:
    state = State(prompt_tokens=7, generation_tokens=5, running=2, waiting=1, kv_usage=0.25, drafts=4)
    state.draft_tokens, state.accepted = 12, [4, 2, 1]
    engine = parse(state.text("m"))
    assert (engine.prompt_tokens, engine.generation_tokens, engine.running, engine.waiting) == (7, 5, 2, 1)
    assert engine.accepted_by_position == (4, 2, 1)
    assert engine.sample().tokens == 7 + 5 + 12


@given(st.text(max_size=200))
def test_any_metrics_text_gives_numbers_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text)


def test_every_check_has_reason_and_mend_and_belongs_somewhere() -> None:
    for check in load_checks():
        assert check.why
        assert check.mend
        assert check.sets
    for name in ("full", "quick", "demo"):
        assert {"known-answer", "abort", "auth"} <= {c.name for c in pick(load_checks(), chosen=name)}


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(SparkloomError, match="no such check"):
        pick(load_checks(), only=["knwon-answer"])
    with pytest.raises(SparkloomError, match="no such set"):
        pick(load_checks(), chosen="ful")


@pytest.mark.parametrize("text", ["", "[]", '{"checks": 1}', '{"checks": [{"name": "a"}]}'])
def test_bad_check_files_give_one_clear_error(text: str) -> None:
    with pytest.raises(SparkloomError, match="not a list of checks"):
        parse_checks(text, "own.json")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A fake server in a thread of its own, for the synchronous command."""
    fake = FakeServer(key="sk-x")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result()
    yield fake
    asyncio.run_coroutine_threadsafe(fake.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_the_command_reads_the_key_from_a_file(server, tmp_path, capsys) -> None:
    key = tmp_path / "key"
    key.write_text("sk-x\n")
    args = ["probe", server.url + "/v1", "--checks", "quick", "--key-file", str(key), "--long-words", "200"]
    assert run([*args, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "ok"
    assert {r["check"] for r in told["results"]} >= {"known-answer", "stream", "abort"}
    assert "sk-x" not in json.dumps(told)


def test_the_command_without_the_key_fails_and_says_401(server, capsys, monkeypatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert run(["probe", server.url, "--only", "known-answer"]) == 3
    assert "401" in capsys.readouterr().out


def test_the_command_says_6_when_nobody_listens(capsys) -> None:
    assert run(["probe", "127.0.0.1:9", "--checks", "quick"]) == 6

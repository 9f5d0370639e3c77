"""Every fault of the fake engine gets the verdict that it must get, by the check that must see it."""

from __future__ import annotations

import asyncio

import pytest

from sparkloom.pair import Answer
from sparkloom.probe import Result, Target, Verdict, canary, exit_code, load_checks, pick, probe
from sparkloom.testing.fake_openai import FakeServer, Mode, Timing

FAST = {"deadline_s": 0.4}


def run(
    mode: Mode, *, only: list[str] | None = None, key: str | None = "sk-x", **server: object
) -> dict[str, Result]:
    """Results by check name."""

    async def go() -> list[Result]:
        async with FakeServer(mode, key=key, **server) as fake:  # type: ignore[arg-type]
            checks = pick(load_checks(), chosen="full", only=only or ())
            if mode in (Mode.HANG, Mode.NEVER_GENERATES):
                checks = [c.model_copy(update=FAST) for c in checks]
            if mode is Mode.ZOMBIE:
                checks = [c.model_copy(update={"rule": {"idle_within_s": 0.5}}) for c in checks]
            return await probe(Target(fake.url, key=key, words=600), checks)

    return {r.check: r for r in asyncio.run(go())}


def failed(results: dict[str, Result]) -> set[str]:
    return {name for name, r in results.items() if r.level is Verdict.FAIL}


def test_a_healthy_server_passes_everything() -> None:
    results = run(Mode.OK)
    assert not failed(results), [r.summary for r in results.values() if r.level is Verdict.FAIL]
    assert exit_code(list(results.values())) == 0
    assert len(results) == 12


@pytest.mark.parametrize(
    ("mode", "must_fail", "seen"),
    [
        (Mode.WRONG_ANSWER, {"known-answer", "arithmetic"}, "Rome"),
        (Mode.COLLAPSE, {"known-answer", "collapse"}, "again and again"),
        (Mode.ZERO_ACCEPTANCE, {"draft-acceptance"}, "zero"),
        (Mode.PINNED_ACCEPTANCE, {"draft-acceptance"}, "pinned"),
        (Mode.BAD_UNICODE, {"rare-token"}, "it in the answer"),
        (Mode.TOOL_LEAK, {"tool-call"}, "it in the answer"),
        (Mode.REASONING_LEAK, {"reasoning"}, "it in the answer"),
        (Mode.STREAM_DIFFERS, {"stream"}, "France is"),
        (Mode.LONG_PROMPT_DIES, {"long-prompt"}, "EngineCore"),
        (Mode.ZOMBIE, {"abort"}, "1 running"),
    ],
)
def test_each_fault_is_seen_by_its_check(mode: Mode, must_fail: set[str], seen: str) -> None:
    """D4, P26, P44 (rare tokens), P47 (calls), P49 (reasoning), P56, P58: each fault of a fake server."""
    only = sorted(must_fail) if mode is not Mode.LONG_PROMPT_DIES else ["known-answer", "long-prompt"]
    timing = Timing(per_token_s=0.02 if mode is Mode.ZOMBIE else 0.0)
    results = run(mode, only=only, timing=timing)
    assert failed(results) == must_fail, {k: r.summary for k, r in results.items()}
    first = results[sorted(must_fail)[-1]]
    assert any(seen in results[name].seen for name in must_fail), first.seen
    assert all(results[name].mend for name in must_fail)
    assert exit_code(list(results.values())) == 3


def test_a_server_that_only_hangs_fails_health_and_the_rest_is_not_asked() -> None:
    """D4: mode hang."""
    results = run(Mode.HANG)
    assert results["health"].level is Verdict.FAIL
    assert {r.level for n, r in results.items() if n != "health"} == {Verdict.SKIP}


def test_health_200_without_generation_is_not_ready() -> None:
    """D4, P26: `/health` alone proves nothing."""
    results = run(Mode.NEVER_GENERATES, only=["health", "known-answer"])
    assert results["health"].level is Verdict.OK
    assert results["known-answer"].level is Verdict.FAIL
    assert "within 0.4 s" in results["known-answer"].expected


def test_a_slow_prefill_is_waited_for() -> None:
    """D4: mode slow prefill."""
    results = run(Mode.SLOW_PREFILL, only=["known-answer"], timing=Timing(prefill_s=0.5))
    assert results["known-answer"].level is Verdict.OK


def test_open_generating_routes_warn_on_loopback_and_name_the_route() -> None:
    result = run(Mode.OPEN_ROUTES, only=["auth"])["auth"]
    assert result.level is Verdict.WARN
    assert "POST /invocations" in result.seen


def test_no_key_at_all_is_said() -> None:
    result = run(Mode.OK, only=["auth"], key=None)["auth"]
    assert result.level is Verdict.WARN
    assert "no key is in use" in result.seen


def test_a_server_without_drafts_skips_that_check() -> None:
    assert run(Mode.OK, only=["draft-acceptance"], drafts=False)["draft-acceptance"].level is Verdict.SKIP


def test_abort_drains_to_zero() -> None:
    """P58: no zombie request after a client left."""
    result = run(Mode.OK, only=["abort"], timing=Timing(per_token_s=0.01))["abort"]
    assert result.level is Verdict.OK
    assert "idle after" in result.seen


def test_nobody_listens_is_a_failure_of_the_first_check_only() -> None:
    results = asyncio.run(probe(Target("http://127.0.0.1:9"), pick(load_checks(), chosen="quick")))
    assert results[0].level is Verdict.FAIL
    assert results[0].expected == "a connection"
    assert all(r.level is Verdict.SKIP for r in results[1:])


def test_an_answer_cut_by_its_limit_is_not_called_wrong() -> None:
    """A thinking model, or one with small tokens, may not get to the answer: that alone ends no pair."""
    check = next(c for c in load_checks() if c.name == "known-answer")
    short = check.model_copy(update={"request": {**check.request, "max_tokens": 3}})

    async def go() -> tuple[Answer, str]:
        async with FakeServer() as fake:
            return await canary(Target(fake.url, model="fake"), short, 5.0)

    assert asyncio.run(go())[0] is Answer.NONE


@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        (Mode.OK, Answer.RIGHT),
        (Mode.WRONG_ANSWER, Answer.WRONG),
        (Mode.COLLAPSE, Answer.WRONG),
        (Mode.HANG, Answer.NONE),
        (Mode.NEVER_GENERATES, Answer.NONE),
    ],
)
def test_the_canary_tells_wrong_from_none(mode: Mode, answer: Answer) -> None:
    """D4, P26: what a tiny generation of a running pair is worth."""
    check = next(c for c in load_checks() if c.name == "known-answer")

    async def go() -> tuple[Answer, str]:
        async with FakeServer(mode) as fake:
            return await canary(Target(fake.url, model="fake"), check, 0.3)

    found, text = asyncio.run(go())
    assert found is answer
    assert text

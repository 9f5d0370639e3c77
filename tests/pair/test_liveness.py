"""Busy engines live, hung ones do not."""

from __future__ import annotations

from sparkloom.pair import Answer, Limits, Liveness, Sample, Verdict

LIMITS = Limits.of({"stall_s": 100, "idle_s": 20, "canary_s": 30, "canary_failures": 1})


def live() -> Liveness:
    return Liveness(LIMITS, progress_at=0.0)


def test_ten_minutes_of_prefill_are_progress() -> None:
    """D4, P26: a long prefill must not be killed."""
    rule = live()
    for second in range(0, 600, 5):
        verdict = rule.sample(Sample(tokens=7, kv_usage=second / 1000, running=1, waiting=2), float(second))
        assert verdict is Verdict.FINE
        assert rule.fed(float(second))


def test_a_busy_engine_is_asked_too_but_seldom() -> None:
    rule = Liveness(Limits.of({"idle_s": 20, "check_s": 200}), progress_at=0.0)
    asked = []
    for second in range(0, 1000, 5):
        verdict = rule.sample(Sample(tokens=second, kv_usage=0.5, running=3, waiting=0), float(second))
        if verdict is Verdict.ASK:
            asked.append(second)
            rule.answered(Answer.RIGHT, "", second + 1.0)
    assert asked == [200, 400, 600, 800]


def test_requests_that_run_without_any_progress_are_a_hang() -> None:
    """D4, P26."""
    rule = live()
    verdicts = [rule.sample(Sample(7, 0.5, 1, 0), float(t)) for t in range(0, 110, 5)]
    assert verdicts[-1] is Verdict.HUNG
    assert verdicts.index(Verdict.HUNG) == 20
    assert "1 requests run and nothing moved" in rule.text


def test_an_idle_engine_is_asked_and_a_right_answer_feeds() -> None:
    rule = live()
    idle = Sample(7, 0.0, 0, 0)
    assert rule.sample(idle, 0.0) is Verdict.FINE
    assert rule.sample(idle, 21.0) is Verdict.ASK
    assert rule.sample(idle, 22.0) is Verdict.FINE  # asked once, not twice
    assert rule.answered(Answer.RIGHT, "", 23.0) is Verdict.FINE
    assert rule.sample(idle, 30.0) is Verdict.FINE
    assert rule.sample(idle, 44.0) is Verdict.ASK


def test_no_answer_when_idle_is_a_hang() -> None:
    rule = live()
    idle = Sample(7, 0.0, 0, 0)
    rule.sample(idle, 0.0)
    assert rule.sample(idle, 20.0) is Verdict.ASK
    assert rule.answered(Answer.NONE, "no answer in 30 s", 50.0) is Verdict.FINE
    assert rule.sample(idle, 51.0) is Verdict.HUNG
    assert "no answer in 30 s" in rule.text


def test_no_answer_beside_a_long_prefill_is_not() -> None:
    rule = live()
    rule.sample(Sample(7, 0.0, 0, 0), 0.0)
    assert rule.sample(Sample(7, 0.0, 0, 0), 20.0) is Verdict.ASK
    for t in range(21, 300):
        if t == 50:
            rule.answered(Answer.NONE, "no answer in 30 s", 50.0)
        assert rule.sample(Sample(7, t / 1000, 1, 1), float(t)) is Verdict.FINE


def test_a_wrong_answer_needs_no_further_proof() -> None:
    assert live().answered(Answer.WRONG, "expected Paris, saw !!!!", 5.0) is Verdict.HUNG


def test_metrics_that_cannot_be_read_lead_to_a_question_then_to_a_verdict() -> None:
    rule = live()
    assert rule.sample(None, 10.0) is Verdict.FINE
    assert rule.sample(None, 25.0) is Verdict.ASK
    rule.answered(Answer.NONE, "connection refused", 55.0)
    assert rule.sample(None, 60.0) is Verdict.HUNG


def test_one_missing_answer_of_two_is_asked_again() -> None:
    rule = Liveness(Limits.of({"stall_s": 300, "idle_s": 20, "canary_s": 30}), progress_at=0.0)
    idle = Sample(7, 0.0, 0, 0)
    rule.sample(idle, 0.0)
    assert rule.sample(idle, 20.0) is Verdict.ASK
    rule.answered(Answer.NONE, "no answer in 30 s", 50.0)
    assert rule.sample(idle, 51.0) is Verdict.ASK
    rule.answered(Answer.NONE, "no answer in 30 s", 81.0)
    assert rule.sample(idle, 82.0) is Verdict.HUNG

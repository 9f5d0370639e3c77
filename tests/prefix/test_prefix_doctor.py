"""Pairs of request bodies: the place, the cause and the cost are named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkloom.cli.main import run
from sparkloom.errors import Exit
from sparkloom.prefix.doctor import Piece, compare, first_difference, first_path

BASE: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You help. Rules follow.\nBe brief."},
        {"role": "user", "content": "Where is the log?"},
        {"role": "assistant", "content": "In the journal."},
        {"role": "user", "content": "Show the last line."},
    ],
}


def render(body: dict[str, Any]) -> tuple[str, list[Piece]]:
    """A template in the manner of GLM: effort first, tools, then messages; one token a character."""
    effort = body.get("reasoning_effort", "max")
    text = f"<sys>effort {effort}\n" + json.dumps(body.get("tools") or []) + "\n"
    text += "".join(f"<{m['role']}>{m['content']}\n" for m in body["messages"]) + "<assistant>"
    return text, [Piece(ord(c), i, i + 1) for i, c in enumerate(text)]


def changed(**edit: Any) -> dict[str, Any]:
    body = copy.deepcopy(BASE)
    for key, value in edit.items():
        if key.startswith("m"):
            body["messages"][int(key[1:])]["content"] = value
        else:
            body[key] = value
    return body


CASES = [
    ("same", BASE, BASE),
    ("effort", BASE, changed(reasoning_effort="low")),
    ("effort", BASE, changed(chat_template_kwargs={"enable_thinking": False}, m0="x")),
    ("tools", changed(tools=[{"name": "a"}, {"name": "b"}]), changed(tools=[{"name": "b"}, {"name": "a"}])),
    ("identifier", changed(m0="id session-8f3a2b1c9d here"), changed(m0="id session-77aa2b1c9d here")),
    (
        "identifier",
        changed(m0="r 123e4567-e89b-12d3-a456-426614174000 end"),
        changed(m0="r 223e4567-e89b-12d3-a456-426614174000 end"),
    ),
    ("clock", changed(m0="Now it is 10:31:02 sharp"), changed(m0="Now it is 10:32:40 sharp")),
    ("task-list", changed(m0="Plan\n- [ ] find it\nend"), changed(m0="Plan\n- [x] find it\nend")),
    ("system", BASE, changed(m0="You help much. Rules follow.\nBe brief.")),
    ("history", BASE, changed(m1="Where is the other log?")),
    ("content", BASE, changed(m3="Show the first line.")),
]


@pytest.mark.parametrize(("cause", "a", "b"), CASES)
def test_cause(cause: str, a: dict[str, Any], b: dict[str, Any]) -> None:
    (text_a, tokens_a), (text_b, tokens_b) = render(a), render(b)
    found = compare(a, b, text_a, text_b, tokens_a, tokens_b, block=16)
    assert found.cause == cause
    assert found.reusable_tokens % 16 == 0
    assert found.reusable_tokens <= found.shared_tokens
    assert found.lost_tokens == len(tokens_b) - found.reusable_tokens
    if found.token is not None:
        assert tokens_a[found.token].id != tokens_b[found.token].id
        assert found.token == found.character


def test_a_longer_prompt_is_an_append() -> None:
    text, tokens = render(BASE)
    found = compare(BASE, BASE, text, text + "more", tokens, [*tokens, Piece(1, 0, 0)], block=10)
    assert (found.cause, found.token) == ("append", None)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_first_difference_is_the_common_beginning(a: list[int], b: list[int]) -> None:
    n = first_difference(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_path_is_found_exactly_when_values_differ(a: Any, b: Any) -> None:
    assert (first_path(a, b) is None) == (a == b)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[]", "no list of messages"), ('{"messages": [{}]}', "without a role")],
)
def test_bad_bodies(tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert run(["prefix-diff", str(path), str(path), "--model", str(tmp_path)]) == Exit.INPUT
    err = capsys.readouterr().err
    assert words in err
    assert "mend:" in err

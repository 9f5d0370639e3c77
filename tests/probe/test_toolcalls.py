"""The corpus of tool calls against the parser of the installed vLLM, whole and in every chunk split.

vLLM's parser is a dependency: where it gets a case wrong, `KNOWN` says so, strictly (a fixed case fails the
test and must leave the list).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toolcall_parser import Parser, Said, splits

pytest.importorskip("vllm", reason="vLLM is not installed")

CORPUS = json.loads((Path(__file__).parent / "toolcalls/corpus.json").read_text())
KNOWN = {
    "JSON form after the marker": "the call is dropped, whole and streamed",
    "call cut in the middle of a value": "whole: the value is dropped; streamed: the JSON stays open",
    "name that is no tool": "the call is dropped, whole and streamed",
    "closing marker of a value inside a value": "the value ends at the marker (the form has no escape)",
    "closing marker of a call inside a value": "the call ends at the marker (the form has no escape)",
    "text after a call": "whole: dropped; streamed: kept or dropped, by where the steps fall",
}


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser(CORPUS["tools"])


def expected(case: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    return case["content"], case["calls"]


def problems(parser: Parser, case: dict[str, Any]) -> list[str]:
    """What is wrong with the whole reply and with each split, the first of each kind."""
    text, think = case["text"], case.get("think", False)
    content, calls = expected(case)
    whole = parser.whole(text, think).tidy()
    found = []
    if (whole.content.strip(), whole.calls) != (content.strip(), calls):
        found.append(f"whole: {whole}")
    for chunks in splits(len(parser.tokenizer.encode(text))):
        said: Said = parser.streamed(text, think, chunks).tidy()
        if (said.content.strip(), said.calls) != (content.strip(), calls):
            found.append(f"streamed in {chunks[:2]}: {said}")
            break
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("case", CORPUS["cases"], ids=lambda c: c["name"])
def test_whole_and_streamed_give_the_expected_call(parser: Parser, case: dict[str, Any]) -> None:
    """D6, P47: text fixtures x every chunk split, with and without thinking."""
    found = problems(parser, case)
    if case["name"] in KNOWN:
        assert found, f"{case['name']} works now: take it out of KNOWN"
    else:
        assert not found, "\n".join(found)


def test_the_corpus_is_large_and_its_names_are_unique() -> None:
    names = [c["name"] for c in CORPUS["cases"]]
    assert len(names) >= 50
    assert len(set(names)) == len(names)
    assert set(KNOWN) <= set(names)
    assert {c["name"] for case in CORPUS["cases"] for c in case["calls"]} <= {*CORPUS["tools"], "fly_to_moon"}

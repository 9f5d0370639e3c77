"""`prefix-diff` end to end: a real tokenizer with a real chat template, and what a miss costs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sparkloom.cli.main import run

pytest.importorskip("transformers")

TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}}}}
    for n in ("read_file", "run_tests")
]
SESSION: dict[str, Any] = {
    "model": "m",
    "tools": TOOLS,
    "messages": [
        {"role": "system", "content": "You mend services. " * 60},
        {"role": "user", "content": "Why does the unit restart?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"path": "/etc/unit"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Restart=always"},
        {"role": "user", "content": "Mend it."},
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny GLM's byte-level tokenizer with GLM's special tokens, and its template."""
    from sparkloom.tiny.tokenizer import write

    folder = tmp_path_factory.mktemp("tokenizer")
    write(folder, 512)
    return folder


def ask(
    tmp_path: Path, model: Path, b: dict[str, Any], capsys: pytest.CaptureFixture[str], *words: str
) -> dict[str, Any]:
    for name, body in (("a.json", SESSION), ("b.json", b)):
        (tmp_path / name).write_text(json.dumps(body))
    line = ["prefix-diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--model", str(model)]
    assert run([*line, "--block", "16", "--format", "json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def changed() -> dict[str, Any]:
    return copy.deepcopy(SESSION)


def tool_order(b: dict[str, Any]) -> None:
    b["tools"].reverse()


def tool_call(b: dict[str, Any]) -> None:
    b["messages"][2]["tool_calls"][0]["function"]["arguments"] = '{"path": "/etc/other"}'


def session_id(b: dict[str, Any]) -> None:
    b["messages"][0]["content"] += "session-4f2a9c1b77"


def thinking(b: dict[str, Any]) -> None:
    """Rendered at the very end by this template: nothing before it is lost."""
    b["chat_template_kwargs"] = {"enable_thinking": False}


def two_at_once(b: dict[str, Any]) -> None:
    """The body names messages first; the template renders tools before them."""
    b["messages"][4]["content"] = "Mend it now."
    b["tools"].pop()


def unrendered(b: dict[str, Any]) -> None:
    """This template knows no effort word: it must not be blamed for what the message does."""
    b["reasoning_effort"] = "low"
    b["messages"][1]["content"] = "Why does it restart?"


def order_only(b: dict[str, Any]) -> None:
    """Other spacing of the arguments' JSON text renders to the same prompt."""
    b["messages"][2]["tool_calls"][0]["function"]["arguments"] = '{ "path":"/etc/unit" }'


@pytest.mark.parametrize(
    ("edit", "cause", "where"),
    [
        (tool_order, "tools", "$.tools[0].function.name"),
        (tool_call, "history", "$.messages[2].tool_calls[0].function.arguments"),
        (session_id, "system", "$.messages[0].content"),
        (thinking, "append", None),
        (two_at_once, "tools", "$.tools[1]"),
        (unrendered, "history", "$.messages[1].content"),
        (order_only, "same", None),
    ],
)
def test_cause_and_place(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], edit: Any, cause: str, where: str | None
) -> None:
    b = changed()
    edit(b)
    found = ask(tmp_path, model, b, capsys)
    assert found["cause"] == cause
    if where is not None:
        assert found["where"] == where


def test_place_and_cost_are_those_of_the_tokens(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted again here with the tokenizer alone."""
    from transformers import AutoTokenizer

    b = changed()
    tool_call(b)
    found = ask(tmp_path, model, b, capsys, "--prefill-rate", "50")
    tokenizer = AutoTokenizer.from_pretrained(str(model))

    def ids(body: dict[str, Any]) -> list[int]:
        body = copy.deepcopy(body)
        call = body["messages"][2]["tool_calls"][0]["function"]
        call["arguments"] = json.loads(call["arguments"])
        text = tokenizer.apply_chat_template(
            body["messages"], tools=body["tools"], tokenize=False, add_generation_prompt=True
        )
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    one, two = ids(SESSION), ids(b)
    shared = next(i for i, (x, y) in enumerate(zip(one, two, strict=False)) if x != y)
    assert found["token"] == found["shared_tokens"] == shared > 100
    assert found["tokens"] == [len(one), len(two)]
    assert found["reusable_tokens"] == shared // 16 * 16
    assert found["lost_tokens"] == len(two) - shared // 16 * 16
    assert found["lost_seconds"] == pytest.approx(found["lost_tokens"] / 50, abs=0.01)


def test_template_that_refuses(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = tmp_path / "strict"
    strict.mkdir()
    for path in model.iterdir():
        (strict / path.name).write_bytes(path.read_bytes())
    template = "{{ raise_exception('roles must alternate') }}"
    (strict / "chat_template.jinja").write_text(template)
    (tmp_path / "a.json").write_text(json.dumps(SESSION))
    line = ["prefix-diff", str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--model", str(strict)]
    assert run(line) == 4
    assert "roles must alternate" in capsys.readouterr().err

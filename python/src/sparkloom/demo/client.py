"""A small client of the OpenAI API: the checked answer and the streamed one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from sparkloom.errors import Exit, SparkloomError


@dataclass
class Answer:
    """A streamed answer and how fast it came."""

    text: str
    tokens: int
    first_s: float  # from the request to the first token
    total_s: float

    @property
    def rate(self) -> float:
        """Tokens a second after the first one; 0 when there is no second."""
        return (self.tokens - 1) / (self.total_s - self.first_s) if self.tokens > 1 else 0.0


class Client:
    """Talks to one server; proxies of the environment are not used, the server is on this machine."""

    def __init__(self, port: int, api_key: str = "", timeout: float = 180.0) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=self.base, headers=self.headers, timeout=timeout, trust_env=False)

    def healthy(self) -> bool:
        """Whether `/health` answers 200. It says nothing about the other rank."""
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One JSON request.

        Errors: RANK for a broken connection or an error of the server.
        """
        try:
            answer = self._http.post(path, json=body)
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
        except httpx.HTTPStatusError as error:
            raise _refused(path, error.response.status_code, error.response.text) from None
        except (httpx.HTTPError, ValueError) as error:
            raise _broken(path, error) from None
        return found

    def chat(self, model: str, question: str, max_tokens: int) -> str:
        """A greedy answer to one question."""
        body = _body(model, question, max_tokens)
        return str(self.post("/v1/chat/completions", body)["choices"][0]["message"]["content"] or "")

    def stream(self, model: str, question: str, max_tokens: int, show: Callable[[str], None]) -> Answer:
        """A greedy answer, piece by piece to `show`, with its timing."""
        body = _body(model, question, max_tokens) | {
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started = time.monotonic()
        first = last = 0.0
        pieces: list[str] = []
        tokens = 0
        for event in self._events("/v1/chat/completions", body):
            if event.get("usage"):
                tokens = int(event["usage"]["completion_tokens"])
            for choice in event.get("choices", ()):
                piece = choice["delta"].get("content") or choice["delta"].get("reasoning") or ""
                if piece:
                    last = time.monotonic()
                    first = first or last
                    pieces.append(piece)
                    show(piece)
        return Answer("".join(pieces), tokens, first - started, last - started)

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    raise _refused(path, answer.status_code, answer.read().decode(errors="replace"))
                for line in answer.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield json.loads(line[6:])
        except (httpx.HTTPError, ValueError) as error:
            raise _broken(path, error) from None

    def metric(self, name: str) -> float:
        """The sum of a counter over its labels, 0 when there is none."""
        try:
            text = self._http.get("/metrics").text
        except httpx.HTTPError:
            return 0.0
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _body(model: str, question: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def _refused(path: str, status: int, text: str) -> SparkloomError:
    return SparkloomError(
        f"the server answered {status} to {path}",
        detail=text[:500],
        mend="read the head's log",
        code=Exit.RANK,
    )


def _broken(path: str, error: Exception) -> SparkloomError:
    return SparkloomError(
        f"no whole answer to {path}: {type(error).__name__} {error}".rstrip(),
        mend="read the head's log",
        code=Exit.RANK,
    )

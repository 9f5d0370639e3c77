"""A customer: asks the same question again and again, and keeps count of right, wrong and lost answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Asked:
    """One question: when it was sent and answered (monotonic seconds), and how it ended."""

    sent: float
    ended: float
    how: str  # right, wrong, lost, refused


class Customer:
    """Runs in a thread. A refused connection (nothing listens) is no lost request: nothing was accepted."""

    def __init__(
        self,
        url: str,
        question: str,
        answer: str,
        listening: Callable[[], bool],
        every: float = 0.25,
        timeout: float = 60.0,
    ) -> None:
        self.url, self.answer, self.every, self.listening = url, answer, every, listening
        self.body = {
            "model": "chaos",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 64,
            "temperature": 0,
        }
        self.asked: list[Asked] = []
        self.timeout = timeout
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="customer")

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present question."""
        self._ended.set()
        self._thread.join(self.timeout + 5)

    def since(self, begin: float) -> dict[str, int]:
        """How often each outcome came among questions that ended after `begin`."""
        found = {"right": 0, "wrong": 0, "lost": 0, "refused": 0}
        for item in self.asked:
            if item.ended >= begin:
                found[item.how] += 1
        return found

    def first_right(self, begin: float) -> float | None:
        """When the first question sent after `begin` was answered rightly."""
        return next((a.ended for a in self.asked if a.sent >= begin and a.how == "right"), None)

    def _run(self) -> None:
        while not self._ended.wait(self.every):
            sent = time.monotonic()
            how = self._ask()
            self.asked.append(Asked(sent, time.monotonic(), how))

    def _ask(self) -> str:
        if not self.listening():
            return "refused"
        # A connection for each question: one that is kept would hide a head that listens no more.
        try:
            with httpx.Client(timeout=self.timeout, trust_env=False, verify=False) as http:
                response = http.post(self.url + "/v1/chat/completions", json=self.body)
            if response.status_code != 200:
                return "lost"
            text = response.json()["choices"][0]["message"]["content"] or ""
            return "right" if self.answer in text else "wrong"
        except (httpx.HTTPError, ValueError, KeyError, IndexError):
            return "lost"

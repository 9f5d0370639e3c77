"""How the demo shows its progress: one line a phase with elapsed time, a live line on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class View:
    """Phases on a console.

    On a terminal the running phase is a live line; elsewhere (a log file) each phase prints when it is done,
    and long ones say every `every` seconds that they go on.
    """

    def __init__(self, console: Console, every: float = 15.0) -> None:
        self.console, self.every = console, every
        self.started = time.monotonic()
        self.phases: list[tuple[str, float]] = []
        self._label, self._note, self._said = "", "", 0.0
        self._since = self.started
        self._status = console.status("", spinner="dots") if console.is_terminal else None

    @contextmanager
    def phase(self, label: str) -> Iterator[None]:
        """Run a phase; its line is printed at the end, with a cross when it failed."""
        self._label, self._note = label, ""
        self._since = self._said = time.monotonic()
        if self._status:
            self._status.start()
            self._refresh()
        mark = "[red]✗[/]"
        try:
            yield
            mark = "[green]✓[/]"
        finally:
            if self._status:
                self._status.stop()
            seconds = time.monotonic() - self._since
            self.phases.append((label, round(seconds, 2)))
            note = f"  [dim]{escape(self._note)}[/]" if self._note else ""
            self.console.print(f"{mark} {escape(label)}{note}  [dim]{seconds:.1f} s[/]", highlight=False)

    def note(self, text: str) -> None:
        """What the running phase is at."""
        self._note = text
        now = time.monotonic()
        if self._status:
            self._refresh()
        elif now - self._said > self.every:
            self._said = now
            self.console.print(
                f"  … {escape(self._label)}: {escape(text)}  {now - self._since:.0f} s", highlight=False
            )

    def _refresh(self) -> None:
        if self._status:
            seconds = time.monotonic() - self._since
            self._status.update(f"{escape(self._label)} [dim]{escape(self._note)}  {seconds:.0f} s[/]")

    @property
    def elapsed(self) -> float:
        """Seconds since the view was made."""
        return time.monotonic() - self.started

"""What an agent must remember over its own restart: generation and term, before anybody is told of them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError


@dataclass
class State:
    """The state file. `launched` is the newest generation that this node started; `problem` says why the last
    write failed, if it did."""

    path: Path
    generation: int = 0
    term: int = 0
    launched: int = 0
    problem: str = ""

    def save(self) -> None:
        """Write it, whole and flushed.

        Raises:
            SparkloomError: it cannot be written; the old file stands.
        """
        values = {"generation": self.generation, "term": self.term, "launched": self.launched}
        try:
            fsio.write_json(self.path, values, mode=0o640)
        except OSError as error:
            self.problem = f"cannot write the agent's state: {error.strerror or error}"
            raise unusable(self.problem, self.path) from error
        self.problem = ""


class Lock:
    """Held by the one agent of a state folder while it lives; the kernel lets go of it at its end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent.lock"
        self._fd = -1

    def take(self) -> None:
        """Take it.

        Raises:
            SparkloomError: another agent has it, or the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            problem = f"cannot use the agent's state folder: {error.strerror or error}"
            raise unusable(problem, self.path) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise SparkloomError(
                "another agent of this node is running",
                file=self.path,
                field="agent.state_directory",
                value=str(self.path.parent),
                mend="`systemctl status sparkloom-agent`; `sparkloom status` shows what it does",
                code=Exit.RESOURCE,
            ) from error
        self._fd = fd

    def drop(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def load(folder: Path, *, now: float | None = None) -> State:
    """Read the state; a lost or broken file is not an error.

    The term then comes from the wall clock, so that it is most likely above the old one; where it is not, the
    nodes' answers say so and the coordinator goes above theirs.
    """
    state = State(folder / "agent.json")
    try:
        values = json.loads(state.path.read_text())
        state.generation = int(values["generation"])
        state.term = int(values["term"])
        state.launched = int(values["launched"])
    except (OSError, ValueError, KeyError, TypeError):
        state.term = int(time.time() if now is None else now)
    return state


def unusable(problem: str, path: Path) -> SparkloomError:
    """The error of a file in the state folder that cannot be written."""
    return SparkloomError(
        problem,
        file=path,
        field="agent.state_directory",
        value=str(path.parent),
        mend="make room on its disk, and let the service's user write there",
        code=Exit.RESOURCE,
    )

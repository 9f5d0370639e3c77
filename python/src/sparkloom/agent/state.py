"""What an agent must remember over its own restart: generation and term, before anybody is told of them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkloom import fsio


@dataclass
class State:
    """The state file. `launched` is the newest generation that this node started."""

    path: Path
    generation: int = 0
    term: int = 0
    launched: int = 0

    def save(self) -> None:
        """Write it, whole and flushed."""
        values = asdict(self)
        del values["path"]
        fsio.write_json(self.path, values, mode=0o640)


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

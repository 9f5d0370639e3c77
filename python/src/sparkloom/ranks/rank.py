"""One rank: start it under a keeper, watch it, measure it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkloom.ranks import logs, procs
from sparkloom.ranks.nodes import Node

# vLLM renames its processes; without this the new name is written over the environment that /proc shows, and
# the mark by which a lost rank is found again (`procs.has_mark`) goes with it.
KEEP_MARK = {"SPT_NOENV": "1"}
KEEPER = "sparkloom.ranks.keeper"  # a module to run, not to import
STOP, KILL = b"T", b"K"  # orders on the control pipe


@dataclass(frozen=True)
class Deadlines:
    """Seconds of a staged stop: SIGTERM, `term` later a second one, `again` later SIGKILL to the tree.

    vLLM's head may ignore the first SIGTERM while it starts up; its worker needs up to 13 s after one.
    """

    term: float = 14.0
    again: float = 8.0

    @property
    def total(self) -> float:
        """Seconds until nothing can be left, with a margin for the kernel."""
        return self.term + self.again + 15.0


@dataclass(frozen=True)
class End:
    """How a rank's main process ended: its exit status (128 + signal) and when (Unix seconds)."""

    status: int
    at: float

    def __str__(self) -> str:
        if self.status > 128:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(self.status - 128).name}"
        return f"ended with status {self.status}"


class Rank:
    """A running rank. Made by `Pair.start`; stopping it ends every process it ever made."""

    def __init__(
        self,
        name: str,
        node: Node,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        folder: Path,
        deadlines: Deadlines,
    ) -> None:
        self.name, self.node, self.log, self.deadlines = name, node, log, deadlines
        self.argv = tuple(argv)
        self.started = time.monotonic()
        self._exit = folder / f"{name}.exit.json"
        self._exit.unlink(missing_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        read_end, self._control = os.pipe()
        command = [
            *(("ip", "netns", "exec", node.namespace) if node.namespace else ()),
            *(sys.executable, "-m", KEEPER, "--control", str(read_end), "--exit", str(self._exit)),
            *("--term", str(deadlines.term), "--again", str(deadlines.again)),
            *(("--own-shm",) if node.namespace else ()),
            "--",
            *argv,
        ]
        try:
            with log.open("ab") as out:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**env, **KEEP_MARK},
                    start_new_session=True,
                    pass_fds=(read_end,),
                )
        except BaseException:
            os.close(self._control)
            raise
        finally:
            os.close(read_end)
        found = procs.read(self._popen.pid)
        assert found is not None  # not reaped yet, so it has an entry
        self.keeper = found

    @property
    def pid(self) -> int:
        """The keeper's pid, which is also the rank's session id."""
        return self._popen.pid

    def end(self) -> End | None:
        """How it ended, None while the rank (or the last of its tree) still runs."""
        code = self._popen.poll()
        if code is None:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError):
            said = json.loads(self._exit.read_text())
            return End(int(said["status"]), float(said["at"]))
        return End(code if code >= 0 else 128 - code, time.time())

    def alive(self) -> bool:
        """Whether the rank still runs."""
        return self.end() is None

    def processes(self) -> list[procs.Proc]:
        """The rank's own processes, main process first, without the keeper."""
        return procs.descendants(self.pid, procs.snapshot())

    def memory(self) -> int:
        """Memory of all its processes in bytes: the sum of proportional set sizes."""
        return sum(procs.pss(p.pid) for p in self.processes())

    def signal_all(self, sig: int) -> None:
        """Send a signal to every process of the rank (SIGSTOP makes a hung node, SIGCONT undoes it)."""
        for p in self.processes():
            procs.send(p, sig)

    def request_stop(self) -> None:
        """Begin the staged stop and return at once."""
        self._order(STOP)

    def kill(self) -> None:
        """SIGKILL the whole rank, as when the node loses power."""
        self._order(KILL)

    def wait(self, timeout: float) -> End | None:
        """Wait for the end; None when it still runs after `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)
        return self.end()

    def stop(self) -> End:
        """The staged stop, to its end."""
        self.request_stop()
        ended = self.wait(self.deadlines.total)
        if ended is None:
            self.kill()
            ended = self.wait(15.0)
        if ended is None:  # the keeper itself is stuck; `Run.sweep` finds its tree by session and namespace
            self._popen.kill()
            ended = self.wait(5.0) or End(137, time.time())
        self.close()
        return ended

    def close(self) -> None:
        """Let go of the control pipe (which makes the keeper end the rank, if it still runs)."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        return logs.tail(self.log, lines)

    def _order(self, order: bytes) -> None:
        if self._control >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, order)

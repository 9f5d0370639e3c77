"""The keeper of one rank: `python -m sparkloom.ranks.keeper OPTIONS -- COMMAND...`.

It stands between the starter and the rank, so that nothing of the rank outlives the pair. As a child
subreaper it becomes the parent of every process that the rank orphans, also of those that left their process
group or session. It ends the whole tree when told to, when the rank's main process ends, and when its own
starter is gone (the control pipe closes, whatever the reason was). It needs the standard library only.

Exit status: the command's own, or 128 + signal.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sparkloom.ranks import procs
from sparkloom.ranks.rank import KILL

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SAMPLE_SECONDS = 2.0
ORPHAN_TERM, ORPHAN_AGAIN = 4.0, 2.0  # nobody waits for a graceful end any more


def prctl(option: int, value: int) -> None:
    """`prctl(2)` with one argument."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def own_shared_memory() -> None:
    """An empty /dev/shm of this rank's own (the caller already gave it a mount namespace)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"sparkloom", b"/dev/shm", b"tmpfs", 0, b"mode=1777") != 0:
        raise OSError(ctypes.get_errno(), "mount tmpfs on /dev/shm")


class Keeper:
    """Runs one command and ends all of it."""

    def __init__(self, argv: Sequence[str], control: int, term: float, again: float) -> None:
        self.control, self.term, self.again = control, term, again
        self.status: int | None = None
        self.ended_at = 0.0
        self.shm: set[str] = set()
        self.stop_at: float | None = None  # when the staged stop began
        self.stage = 0
        self.asked = False  # by a signal
        parent = os.getpid()

        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(125)

        self.main = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=in_child)
        self.start = procs.read(self.main.pid)

    def tree(self) -> list[procs.Proc]:
        return procs.descendants(os.getpid(), procs.snapshot())

    def reap(self) -> None:
        """Collect ended children: the main process's status, and every adopted orphan."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.main.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.status, self.ended_at = (code if code >= 0 else 128 - code), time.time()

    def sample(self) -> None:
        """Remember the shared memory files in use, for those that nobody is left to remove."""
        for p in self.tree():
            self.shm |= procs.shared_memory(p.pid)

    def advance(self) -> None:
        """The staged stop: SIGTERM, a second SIGTERM (vLLM in start-up needs it), then SIGKILL."""
        if self.stop_at is None:
            return
        waited = time.monotonic() - self.stop_at
        due = 1 if waited < self.term else 2 if waited < self.term + self.again else 3
        if due > self.stage:
            self.stage = due
            if due == 3:
                procs.kill_all(self._reaped_tree)
            elif self.start is not None:
                procs.send(self.start, signal.SIGTERM)

    def _reaped_tree(self) -> list[procs.Proc]:
        self.reap()
        return self.tree()

    def begin_stop(self, at_once: bool = False) -> None:
        self.sample()
        if self.stop_at is None:
            self.stop_at = time.monotonic()
        if at_once:
            self.stop_at = time.monotonic() - self.term - self.again
        self.advance()

    def _on_signal(self, *_: object) -> None:
        self.asked = True

    def run(self) -> int:
        """Serve until the command and all of its tree have ended."""
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w)
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sig, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        waiting = [self.control, wake_r]
        sampled = 0.0
        while True:
            self.reap()
            if self.status is not None:
                break
            ready, _, _ = select.select(waiting, [], [], 0.5 if self.stop_at is None else 0.1)
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
            if self.control in ready:
                order = os.read(self.control, 1)
                if not order:  # the starter is gone
                    waiting.remove(self.control)
                    self.term, self.again = min(self.term, ORPHAN_TERM), min(self.again, ORPHAN_AGAIN)
                self.begin_stop(at_once=order == KILL)
            if self.asked and self.stop_at is None:
                self.begin_stop()
            self.advance()
            if time.monotonic() - sampled > SAMPLE_SECONDS:
                self.sample()
                sampled = time.monotonic()
        self.finish()
        return self.status

    def finish(self) -> None:
        """After the main process: end what is left of the tree, remove what it left in /dev/shm."""
        self.sample()
        left = self._reaped_tree()
        for p in left:
            procs.send(p, signal.SIGTERM)
        end = time.monotonic() + (min(2.0, self.again) if self.stage < 3 else 0.0)
        while left and time.monotonic() < end:
            time.sleep(0.05)
            left = self._reaped_tree()
        procs.kill_all(self._reaped_tree)
        mine = {name for name in self.shm if os.path.exists(name)}
        if mine:
            others = set().union(*(procs.shared_memory(pid) for pid in procs.snapshot()))
            for name in mine - others:
                with contextlib.suppress(OSError):
                    os.unlink(name)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of the keeper process."""
    parser = argparse.ArgumentParser(prog="sparkloom.ranks.keeper")
    parser.add_argument("--control", type=int, required=True, help="file descriptor of the control pipe")
    parser.add_argument("--exit", type=Path, required=True, help="JSON file for status and time of the end")
    parser.add_argument("--term", type=float, default=12.0, help="seconds from SIGTERM to the second SIGTERM")
    parser.add_argument("--again", type=float, default=8.0, help="seconds from there to SIGKILL")
    parser.add_argument("--own-shm", action="store_true", help="mount a fresh /dev/shm")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(args)
    argv = options.command[1:] if options.command[:1] == ["--"] else options.command
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if options.own_shm:
        try:
            own_shared_memory()
        except OSError as error:  # the machine's /dev/shm serves as well, and is swept at the end
            print(f"keeper: {error}", file=sys.stderr, flush=True)
    try:
        keeper = Keeper(argv, options.control, options.term, options.again)
    except OSError as error:
        print(f"keeper: cannot run {argv[0]!r}: {error}", file=sys.stderr, flush=True)
        status, at = 127, time.time()
    else:
        status = keeper.run()
        at = keeper.ended_at
    part = options.exit.with_suffix(".part")
    with contextlib.suppress(OSError):  # the run's folder may be gone together with the starter
        part.write_text(json.dumps({"status": status, "at": at}))
        os.replace(part, options.exit)
    return status


if __name__ == "__main__":
    sys.exit(main())

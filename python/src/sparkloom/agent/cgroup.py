"""A control group of its own for the rank, where the service manager delegated one (cgroup v2)."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

FS = Path("/sys/fs/cgroup")


@dataclass
class RankGroup:
    """The rank's group. Its `cgroup.kill` ends every process in it, also those that hide from us."""

    path: Path | None
    text: str

    @classmethod
    def make(cls, name: str, pid: int, fs: Path = FS, proc: Path = Path("/proc")) -> RankGroup:
        """Make the group and put `pid` into it; without delegation, say why there is none."""
        try:
            own = next(
                line[3:] for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::")
            )
        except (OSError, StopIteration):
            return cls(None, "no cgroup v2 here")
        if own == "/":
            return cls(None, "this process is in the root group: none was delegated")
        path = fs / own.strip("/") / name
        try:
            path.mkdir(exist_ok=True)
            (path / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            with contextlib.suppress(OSError):
                path.rmdir()
            return cls(None, f"not delegated: {error.strerror}")
        return cls(path, str(path))

    def kill(self) -> None:
        """SIGKILL everything in it."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove the empty group."""
        if self.path is None:
            return
        for _ in range(20):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.05)

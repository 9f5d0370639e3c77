"""The pair: two nodes, the ranks on them, and the promise that nothing of them stays behind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks import logs, runs
from sparkloom.ranks.forward import Forward
from sparkloom.ranks.nodes import Mode, Node, open_network
from sparkloom.ranks.rank import Deadlines, Rank


class Pair:
    """Two nodes on this machine; a context manager.

    Args:
        mode: "netns", "loopback", or "auto" for namespaces where they may be made.
        base: folder for the record of running pairs; only tests give it.

    Leaving the context stops every rank and forward, removes the namespaces, and sweeps for processes that
    got away. If the owner dies instead, each keeper ends its rank, and the next `Pair` removes the rest.
    """

    def __init__(self, mode: Mode = "auto", base: Path | None = None) -> None:
        self.cleared = runs.clear_stale(base)
        self.run = runs.Run(base)
        try:
            self.network, self.reason = open_network(mode, self.run.prefix)
        except BaseException:
            self.run.close()
            raise
        self.ranks: list[Rank] = []
        self.forwards: list[Forward] = []
        self._closed = False

    @property
    def mode(self) -> str:
        """ "netns" or "loopback"."""
        return self.network.mode

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Head's node and worker's node."""
        return self.network.nodes

    def start(
        self,
        name: str,
        node: int,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        deadlines: Deadlines | None = None,
    ) -> Rank:
        """Start a rank in a session of its own; output is appended to `log`.

        Args:
            node: 0 for the head's node, 1 for the worker's.
            env: additions to this process's environment (the node's address and interface are there).
        """
        where = self.nodes[node]
        name_, mark = self.run.mark.split("=")
        full = {**os.environ, **where.env(), **(env or {}), name_: mark}
        rank = Rank(name, where, argv, full, log, self.run.folder, deadlines or Deadlines())
        self.ranks.append(rank)
        self.run.add_keeper(rank.keeper)
        return rank

    def forward(self, node: int, port: int, listen: int, host: str = "127.0.0.1") -> Forward:
        """Make `host:port` of a node reachable at 127.0.0.1:`listen` of this machine.

        Errors: RESOURCE when something listens there already.
        """
        made = Forward(self.network, self.nodes[node], port, listen, host)
        self.forwards.append(made)
        return made

    def check(self) -> None:
        """Raise when a rank has ended. The one that ended first is named: the other only followed.

        Errors: RANK with the last lines of the right log. vLLM ends with status 0 when its pair breaks, so
        the status alone says nothing.
        """
        ended = [(end.at, rank, end) for rank in self.ranks if (end := rank.end())]
        if not ended:
            return
        _, rank, end = min(ended, key=lambda item: item[0])
        cause = logs.first_error(rank.log)
        raise SparkloomError(
            f"rank {rank.name} {end}" + (f": {cause}" if cause else ""),
            file=rank.log,
            detail=rank.tail(),
            mend=logs.mend(rank.log, end.status),
            code=Exit.RANK,
        )

    def close(self) -> list[str]:
        """Stop everything; what could not be ended, one line each (empty when all went)."""
        if self._closed:
            return []
        self._closed = True
        for forward in self.forwards:
            forward.close()
        for rank in self.ranks:  # both at once: the worker needs its 11 s while the head goes
            rank.request_stop()
        for rank in self.ranks:
            rank.stop()
        left = self.run.sweep()
        self.network.down()
        self.run.close()
        return [f"process {p.pid} did not end" for p in left]

    def __enter__(self) -> Pair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

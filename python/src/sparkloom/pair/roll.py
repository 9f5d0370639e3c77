"""What every node has said of itself, and what follows from it. Pure, like the machine that rests on it."""

from __future__ import annotations

from collections.abc import Sequence

from sparkloom.pair.limits import Limits
from sparkloom.pair.model import Cause, Reason, Report


class Roll:
    """The newest report of every node and when it came. `nodes[0]` is the head.

    Args:
        nodes: every node's name, the head's first.
        limits: deadlines.
        now: monotonic seconds; a node that never reports counts as silent since then.
    """

    def __init__(self, nodes: Sequence[str], limits: Limits, now: float) -> None:
        if not nodes or len(set(nodes)) != len(nodes):
            raise ValueError("nodes need distinct names")
        self.nodes = tuple(nodes)
        self.limits = limits
        self.epoch = 0  # rises with each change of phase; a report of an older one is old news
        self.since = now  # of the present phase
        self.reports: dict[str, Report] = {}
        self.seen: dict[str, float] = {}
        self._first = now

    @property
    def head(self) -> str:
        """The node whose rank serves HTTP."""
        return self.nodes[0]

    @property
    def digest(self) -> str:
        """The head's digest, which every node must equal."""
        report = self.reports.get(self.head)
        return report.digest if report else ""

    def holds(self, now: float) -> list[Reason]:
        """What keeps the gate shut; those that waiting may mend come last."""
        found: list[Reason] = []
        waiting: list[Reason] = []
        for node in self.nodes:
            report = self.reports.get(node)
            if report is None or not self._fresh(node) or self._stale(node, now):
                waiting.append(Reason(Cause.UNREACHABLE, "waiting for the node's agent", node))
                continue
            if report.alive:
                text = f"a rank of generation {report.generation} still lives"
                found.append(Reason(Cause.STALE_RANK, text, node))
            if self.head in self.reports and report.digest != self.digest:
                text = (
                    f"its digest {report.digest[:12]} differs from the head's {self.digest[:12]}: "
                    f"{self._difference(report)}"
                )
                found.append(Reason(Cause.DIGEST, text, node))
            found += [Reason(Cause.PREFLIGHT, blocker, node) for blocker in report.blockers]
            if not report.memory_back:
                found.append(Reason(Cause.MEMORY, "too little memory is available for a start", node))
        return found + waiting

    def _difference(self, report: Report) -> str:
        """Which parts of the digest differ."""
        mine, theirs = dict(self.reports[self.head].parts), dict(report.parts)
        names = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        if names:
            return ", ".join(names)
        return "cluster file, package versions, plug-in or weights revision are not the same"

    def _fresh(self, node: str) -> bool:
        """Whether the node has answered a beat of the present phase."""
        report = self.reports.get(node)
        return report is not None and report.epoch == self.epoch

    def _stale(self, node: str, now: float) -> bool:
        return now - self.seen.get(node, self._first) >= self.limits.lease_s

    def _lost(self, now: float) -> Reason | None:
        for node in self.nodes:
            if self._stale(node, now):
                text = f"no answer for {self.limits.lease_s:g} s (node, agent or fabric is down)"
                return Reason(Cause.LEASE_LOST, text, node)
        return None

    def _gone(self, node: str, now: float) -> bool:
        """Whether the node's rank is gone: by its own word, or because its lease and the grace ran out."""
        if self._fresh(node):
            return not self.reports[node].alive
        unseen = now - max(self.seen.get(node, self._first), self.since)
        return unseen >= self.limits.lease_s + self.limits.grace_s

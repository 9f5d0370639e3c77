"""Which cached blocks are to be evicted last, and how many of them may be. Pure: no vLLM in here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Book:
    """Blocks by the group that asked for them to be kept; groups by when they were last used.

    Args:
        limit: most blocks that may be kept, over all groups.
        idle: seconds after which an unused group is no longer kept.
    """

    def __init__(self, limit: int, idle: float) -> None:
        self.limit, self.idle = limit, idle
        self.groups: OrderedDict[str, dict[int, None]] = OrderedDict()
        self.used: dict[str, float] = {}
        self.owner: dict[int, str] = {}
        self.declined = self.demoted = 0

    def __len__(self) -> int:
        return len(self.owner)

    def __contains__(self, block: int) -> bool:
        return block in self.owner

    def keep(self, group: str, blocks: Iterable[int], now: float) -> None:
        """Keep `blocks` for `group`, the most recently used one from now on.

        Where the limit is reached, the group that was unused for longest is given up whole: the head of a
        conversation is worth nothing without its tail. A group alone cannot pass the limit: what comes later
        is not kept.
        """
        self.expire(now)
        mine = self.groups.setdefault(group, {})
        self.groups.move_to_end(group)
        self.used[group] = now
        for block in blocks:
            known = self.owner.get(block)
            if known == group:
                continue
            if known is not None:
                self.drop(block)
            while len(self.owner) >= self.limit and next(iter(self.groups)) != group:
                self.forget(next(iter(self.groups)))
            if len(self.owner) >= self.limit:
                self.declined += 1
                continue
            mine[block] = None
            self.owner[block] = group
        if not mine:
            self.forget(group)

    def expire(self, now: float) -> None:
        """Give up the groups that were unused for too long."""
        while self.groups and now - self.used[oldest := next(iter(self.groups))] > self.idle:
            self.forget(oldest)

    def forget(self, group: str) -> None:
        """Treat a group's blocks as any other's from now on."""
        blocks = self.groups.pop(group, {})
        self.used.pop(group, None)
        self.demoted += bool(blocks)
        for block in blocks:
            del self.owner[block]

    def drop(self, block: int) -> None:
        """A block lost its content."""
        group = self.owner.pop(block, None)
        if group is not None:
            blocks = self.groups[group]
            del blocks[block]
            if not blocks:
                del self.groups[group], self.used[group]

    def clear(self) -> None:
        """The whole cache was reset."""
        self.groups.clear()
        self.used.clear()
        self.owner.clear()

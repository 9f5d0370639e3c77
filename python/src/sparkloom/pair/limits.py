"""Every deadline, wait and limit of the pair, in seconds unless the name says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sparkloom.errors import SparkloomError


@dataclass(frozen=True)
class Limits:
    """Deadlines of one cluster; the defaults suit a 164 GiB checkpoint on two Sparks.

    The load of that checkpoint takes 36 to 290 s and a first start compiles kernels, so the phase deadlines
    are several times the usual duration: they end a start that will never end, they do not judge a slow one.
    """

    beat_s: float = 1.0  # the coordinator's beat to every node
    lease_s: float = 15.0  # a node without a beat for this long ends its rank
    gate_s: float = 900.0  # holds that waiting does not mend (digest, memory, preflight) become a failure
    launch_s: float = 60.0  # all ranks' processes exist
    rendezvous_s: float = 180.0
    weights_s: float = 1800.0
    kv_s: float = 900.0
    graphs_s: float = 1800.0
    serving_s: float = 300.0  # graphs done, /health not yet 200
    warm_s: float = 1800.0  # the acceptance probe as a whole
    drain_s: float = 300.0
    grace_s: float = 20.0  # SIGTERM to SIGKILL of a rank that stops in order
    fail_grace_s: float = 6.0  # the same after a failure: its requests are lost anyway
    stop_s: float = 60.0  # every rank gone
    memory_s: float = 180.0  # memory back after a stop
    wait_first_s: float = 5.0  # first pause after a failure; doubles each time
    wait_factor: float = 2.0
    wait_max_s: float = 300.0
    start_limit: int = 5  # failures within start_window_s before the pair stays down
    start_window_s: float = 3600.0
    stable_s: float = 600.0  # ready for this long forgets earlier failures
    stall_s: float = 300.0  # requests run and nothing moves
    idle_s: float = 30.0  # idle for this long: a tiny checked generation
    check_s: float = 600.0  # busy for this long without a checked generation: one all the same
    canary_s: float = 60.0  # that generation's deadline
    canary_failures: int = 2  # tiny generations without an answer, in a row, before the pair goes down

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and value > 0):
                raise SparkloomError(
                    "a deadline must be a positive number", field=f"agent.{field.name}", value=value
                )
        if self.lease_s < 3 * self.beat_s:
            raise SparkloomError(
                "the lease must outlast three beats",
                field="agent.lease_s",
                value=self.lease_s,
                mend=f"set it to at least {3 * self.beat_s}",
            )
        if self.stop_s <= self.grace_s:
            raise SparkloomError(
                "the stop deadline must be longer than the grace before SIGKILL",
                field="agent.stop_s",
                value=self.stop_s,
                mend=f"set it above {self.grace_s}",
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        """Limits with some values changed; an unknown name is an error that lists the known ones."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise SparkloomError(
                    "no such deadline", field=f"agent.{name}", mend="known: " + ", ".join(sorted(known))
                )
        return cls(**values)

    def wait(self, failures: int) -> float:
        """The pause before the next start after `failures` failures in a row."""
        if failures <= 0:
            return 0.0
        return float(min(self.wait_max_s, self.wait_first_s * self.wait_factor ** min(failures - 1, 30)))

"""A nap instead of a spin in vLLM's shared-memory readers, for machines with fewer cores than processes.

After each message a reader of vLLM's broadcast queue yields in a loop for a second before it sleeps. With a
core for each process that costs nothing and answers soonest. With fewer cores the spinning engine core takes
a core away from the workers: the two-node demo on two cores runs half as fast. A short nap in place of the
yield keeps the loop and frees the core. (vLLM's own `busy_loop_s = 0` is no way out: wake-ups get lost and a
token takes seconds.)

Options, read from the environment:

* `SPARKLOOM_SPIN_NAP`: `auto` (default: on when there are fewer cores than processes), `on`, `off`, or the
  nap's length in microseconds.
* `SPARKLOOM_PROCESSES`: busy vLLM processes on this machine, all nodes of it together; a launcher that puts
  two nodes on one machine sets it. Default 3: API server, engine core, one worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from sparkloom.errors import SparkloomError

NAP_US = 300
PROCESSES = 3


def nap_seconds(env: Mapping[str, str], cores: int) -> float:
    """Length of the nap in seconds, 0 for vLLM's own spin.

    Raises:
        SparkloomError: a value that is none of the documented ones.
    """
    text = env.get("SPARKLOOM_SPIN_NAP", "auto").strip().lower() or "auto"
    if text == "off":
        return 0.0
    if text == "on":
        return NAP_US * 1e-6
    if text == "auto":
        return NAP_US * 1e-6 if cores < _count(env) else 0.0
    try:
        micros = float(text)
    except ValueError:
        micros = -1.0
    if not 0 <= micros <= 100_000:
        raise SparkloomError(
            "not a length for the reader's nap",
            field="SPARKLOOM_SPIN_NAP",
            value=text,
            mend="use auto, on, off or microseconds from 0 to 100000",
        )
    return micros * 1e-6


def _count(env: Mapping[str, str]) -> int:
    text = env.get("SPARKLOOM_PROCESSES", str(PROCESSES))
    if not text.isdecimal() or int(text) < 1:
        raise SparkloomError(
            "not a number of processes",
            field="SPARKLOOM_PROCESSES",
            value=text,
            mend="use a whole number, 1 or more",
        )
    return int(text)


def install() -> float:
    """Shorten the reader's wait in this process if the options ask for it; return the nap in seconds."""
    nap = nap_seconds(os.environ, len(os.sched_getaffinity(0)))
    if nap:
        from vllm.distributed.device_communicators import shm_broadcast

        shm_broadcast.sched_yield = lambda: time.sleep(nap)
    return nap

"""How long vLLM's message reader spins before it sleeps.

Why: the reader of the shared-memory queue burns one core for a whole second after each message. A window of
16 ms was published to save 85 % of the engine core's CPU time at no loss of speed; 0 loses wake-ups.
Upstream: `SpinCondition` in `vllm/distributed/device_communicators/shm_broadcast.py` (`busy_loop_s = 1`);
issue text: "The reader of the shared-memory queue burns a core for a second after each message. Please make
the window an option."
Default on with 16 ms on CUDA (`spin_window_ms`), stock on the CPU platform.
Tested: the default of vLLM's own class with and without the hook (tests/vllm/hooks). On a GPU: CPU time of
the engine core falls, tokens a second do not.
Drop when: vLLM offers the window as an option.
"""

from __future__ import annotations

from typing import Any

from sparkloom.vllm.hooks.shape import HookRefused, expect_attribute

LEAST_MS = 0.1


def install(value: object) -> None:
    """Change the default of the reader's window.

    Raises:
        HookRefused: a window below 0.1 ms (wake-ups were lost at 0), or upstream changed.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    window = float(str(value))
    if window < LEAST_MS:
        raise HookRefused(f"spin_window_ms: {window} is below {LEAST_MS}; the reader would lose wake-ups")
    condition: Any = expect_attribute("spin_window_ms", shm_broadcast, "SpinCondition")
    original = condition.__init__
    names = original.__code__.co_varnames[: original.__code__.co_argcount]
    if names[-1] != "busy_loop_s" or original.__defaults__ != (1,):
        raise HookRefused(f"spin_window_ms: SpinCondition takes {names} with {original.__defaults__}")
    original.__defaults__ = (window / 1000.0,)

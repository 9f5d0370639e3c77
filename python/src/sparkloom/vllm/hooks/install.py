"""Install the hooks that the options ask for, once per process."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from sparkloom.vllm.hooks import options

logger = logging.getLogger("vllm.sparkloom")

HOOKS: dict[str, str] = {
    "pdl_gate": "pdl_gate",
    "key_on_all_routes": "route_keys",
    "default_new_tokens": "new_tokens",
    "stop_strings_after_reasoning": "stop_strings",
    "per_request_no_store": "no_store",
    "spin_window_ms": "spin_window",
}
"""Option of the cluster file -> module of this package whose `install(value)` does it."""

_installed: dict[str, Any] = {}


def install(chosen: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Install every hook whose option is set and true; calling again does nothing more.

    Args:
        chosen: options; None reads them from the environment.

    Returns:
        the options that are in force in this process.

    Raises:
        HookRefused: upstream no longer has the form that a hook changes.
    """
    for name, value in (options.read() if chosen is None else chosen).items():
        if name in HOOKS and name not in _installed and value not in (None, False):
            importlib.import_module(f"{__package__}.{HOOKS[name]}").install(value)
            _installed[name] = value
            logger.info("sparkloom: %s = %s", name, value)
    return dict(_installed)

"""Install the hooks that the options ask for, once per process."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from sparkloom.vllm.hooks import options
from sparkloom.vllm.hooks.shape import HookRefused

logger = logging.getLogger("vllm.sparkloom")

HOOKS: dict[str, str] = {
    "pdl_gate": "pdl_gate",
    "key_on_all_routes": "route_keys",
    "default_new_tokens": "new_tokens",
    "stop_strings_after_reasoning": "stop_strings",
    "per_request_no_store": "no_store",
    "keep_prefix_share": "retention",
    "spin_window_ms": "spin_window",
    "draft_kv_block_tokens": "draft_block",
    "adaptive_verify_width": "verify_width",
    "dense_quantization": "dense",
}
"""Option of the cluster file -> module of this package whose `install(value)` does it."""

UNBUILT: dict[str, str] = {
    "free_indexer_logits": "the indexer's logits live until the next chunk",
}
"""Options that need a patched vLLM; without it they are refused, never ignored."""

_installed: dict[str, Any] = {}


def patched() -> tuple[str, ...]:
    """Options whose patch the installed vLLM carries; empty for a stock one."""
    try:
        marker = importlib.import_module("vllm._sparkloom_patches")
    except ModuleNotFoundError as error:
        if error.name not in ("vllm", "vllm._sparkloom_patches"):
            raise
        return ()
    return tuple(marker.PATCHES)


def install(chosen: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Install every hook whose option is set and true; calling again does nothing more.

    Args:
        chosen: options; None reads them from the environment.

    Returns:
        the options that are in force in this process.

    Raises:
        HookRefused: upstream no longer has the form that a hook changes.
    """
    wanted = options.read() if chosen is None else chosen
    for name, value in wanted.items():
        if name in UNBUILT and value not in (None, False):
            if name in patched():
                _installed[name] = value
                continue
            raise HookRefused(
                f"patches.{name} needs a vLLM with that patch and this one has none "
                f"({UNBUILT[name]}); take it out of the cluster file"
            )
    if wanted.get("fair_prefill") == "fair" and "fair_prefill" not in _installed:
        from sparkloom.vllm.hooks import fair_prefill

        share = float(wanted.get("fair_prefill_share", 0.3))
        fair_prefill.install("fair", share, float(wanted.get("fair_prefill_max_gap_ms", 2000)) / 1000)
        _installed["fair_prefill"] = "fair"
    for name, value in wanted.items():
        if name in HOOKS and name not in _installed and value not in (None, False):
            importlib.import_module(f"{__package__}.{HOOKS[name]}").install(value)
            _installed[name] = value
            logger.info("sparkloom: %s = %s", name, value)
    return dict(_installed)

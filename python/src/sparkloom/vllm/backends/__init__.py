"""Back ends and the choice among them: `SPARKLOOM_EXL3_BACKEND=auto|reference|cuda|exllamav3`.

To add one: a module here with a subclass of `base.Backend`, and its line in `BACKENDS`, best first.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    import torch

    from sparkloom.vllm.backends.base import Backend, ExpertsSpec, LinearSpec

# Name -> (class, whether `auto` may take it), in the order in which `auto` tries them.
BACKENDS: dict[str, tuple[str, bool]] = {
    "cuda": ("sparkloom.vllm.backends.cuda:CudaBackend", True),
    "reference": ("sparkloom.vllm.backends.reference:ReferenceBackend", True),
    "exllamav3": ("sparkloom.vllm.backends.exllamav3:ExLlamaBackend", False),
}
VARIABLE = "SPARKLOOM_EXL3_BACKEND"


@cache
def load(name: str) -> type[Backend]:
    """Import one back end's class."""
    module, _, attribute = BACKENDS[name][0].partition(":")
    found: type[Backend] = getattr(importlib.import_module(module), attribute)
    return found


def wanted(env: Mapping[str, str] = os.environ) -> str:
    """The back end that the environment asks for, checked.

    Raises:
        SparkloomError: no such back end.
    """
    name = env.get(VARIABLE, "").strip().lower() or "auto"
    if name != "auto" and name not in BACKENDS:
        raise SparkloomError(
            "no such EXL3 back end",
            field=VARIABLE,
            value=name,
            mend="use one of: auto, " + ", ".join(BACKENDS),
            code=Exit.USAGE,
        )
    return name


def select(spec: ExpertsSpec | LinearSpec, device: torch.device, name: str | None = None) -> type[Backend]:
    """The back end for one layer: the named one, or with `auto` the first that can.

    Raises:
        SparkloomError: the named one cannot, or none can; with every reason.
    """
    name = name or wanted()
    reasons: list[str] = []
    for candidate in [name] if name != "auto" else [key for key, (_, auto) in BACKENDS.items() if auto]:
        backend = load(candidate)
        reason = backend.unavailable(device) or backend.refuses(spec)
        if reason is None:
            return backend
        reasons.append(f"{candidate}: {reason}")
    raise SparkloomError(
        f"no EXL3 back end can run {spec.layer} on {device}",
        field=VARIABLE,
        value=name,
        detail="\n".join(reasons),
        mend=f"set {VARIABLE}=auto, or mend what the reason names",
        code=Exit.RESOURCE,
    )

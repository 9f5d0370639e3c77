"""Options of the EXL3 plug-in, read from the environment (every process of a rank sees the same).

| variable | default | meaning |
|---|---|---|
| `SPARKLOOM_EXL3_BACKEND` | `auto` | `auto`, or the name of a back end (`backends/__init__.py`) |
| `SPARKLOOM_EXL3_EXPAND` | `0` | reference back end: `1` decodes all weights at load and drops the packed
form |
| `SPARKLOOM_EXL3_CACHE_MIB` | `1024` | reference back end: bound of the decoded experts kept per process |
| `SPARKLOOM_SPIN_NAP`, `SPARKLOOM_PROCESSES` | `auto`, `3` | the reader's nap (`spin.py`) |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sparkloom.errors import Exit, SparkloomError


@dataclass(frozen=True)
class Options:
    """Options of the reference back end.

    Args:
        expand: decode everything at load.
        cache_bytes: most bytes of decoded experts kept per process; 0 keeps none.
    """

    expand: bool = False
    cache_bytes: int = 1 << 30


def read(env: Mapping[str, str] = os.environ) -> Options:
    """Read the options.

    Raises:
        SparkloomError: a value that is none of the documented ones.
    """
    expand = env.get("SPARKLOOM_EXL3_EXPAND", "").strip().lower()
    if expand not in ("", "0", "1", "true", "false"):
        raise SparkloomError(
            "not a yes or no",
            field="SPARKLOOM_EXL3_EXPAND",
            value=expand,
            mend="use 0 or 1",
            code=Exit.USAGE,
        )
    cache = env.get("SPARKLOOM_EXL3_CACHE_MIB", "").strip() or "1024"
    if not cache.isdecimal():
        raise SparkloomError(
            "not a size in MiB",
            field="SPARKLOOM_EXL3_CACHE_MIB",
            value=cache,
            mend="use a whole number, 0 or more",
            code=Exit.USAGE,
        )
    return Options(expand in ("1", "true"), int(cache) << 20)

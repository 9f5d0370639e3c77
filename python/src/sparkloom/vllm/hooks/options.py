"""The switches, as the cluster file's `patches` section states them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from sparkloom.errors import SparkloomError

ENV = "SPARKLOOM_PATCHES"


def read(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Options from the environment; empty when the variable is unset.

    Raises:
        SparkloomError: the variable is no JSON object.
    """
    text = (os.environ if environ is None else environ).get(ENV)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise SparkloomError(
            "not a JSON object",
            field=ENV,
            value=text[:80],
            mend="let `sparkloom render` write it, or unset it for stock behaviour",
        )
    return value

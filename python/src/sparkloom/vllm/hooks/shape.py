"""Checks that upstream code still looks as a hook expects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class HookRefused(RuntimeError):
    """Upstream changed where a hook would change it too."""


def expect_parameters(hook: str, function: Callable[..., Any], *names: str) -> None:
    """Refuse unless `function` takes the named parameters, in this order, first.

    Raises:
        HookRefused: it does not.
    """
    seen = [n for n in inspect.signature(function).parameters if n not in ("self", "cls")]
    if seen[: len(names)] != list(names):
        raise HookRefused(
            f"{hook}: {function.__qualname__} takes {seen}, expected {list(names)} first; "
            f"set this patch off in the cluster file or use the pinned vLLM"
        )


def expect_attribute(hook: str, owner: Any, name: str) -> Any:
    """The attribute `name` of `owner`.

    Raises:
        HookRefused: there is none.
    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        where = getattr(owner, "__name__", owner)
        raise HookRefused(f"{hook}: {where} has no {name}; the pinned vLLM has") from error

"""Fake implementations: every op writes into given tensors and returns nothing, so a fake does nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

OPS = ("moe", "linear", "reconstruct", "hadamard", "route", "encode_tiles")


@cache
def register() -> None:
    """Tell torch that the ops have no result; for tracing, `torch.compile` and `opcheck`."""
    import torch

    for name in OPS:
        torch.library.register_fake(f"sparkloom_exl3::{name}")(_nothing)


def _nothing(*_: Any) -> None:
    return None

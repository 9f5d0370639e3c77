"""Blocker 1: importing the model needs torchvision.

`glm5next.common.model` builds on vLLM's Glm4v, which imports transformers' Glm4v processor, whose image
processor imports torchvision at once. The package index carries torchvision for CUDA builds of torch;
beside a CPU torch it dies at import. The text model uses nothing of it, so an empty stand-in will do.
"""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

MODULES = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional")


class InterpolationMode(enum.Enum):
    """The one enumeration that is used at import time."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Empty(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, made)
        return made


def apply() -> None:
    """Put the stand-in into `sys.modules` if there is no torchvision."""
    # transformers asks once whether torchvision is installed; it must have asked before the stand-in exists.
    import vllm.transformers_utils.config  # noqa: F401

    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    for part in MODULES:
        name = f"torchvision{part}"
        module = _Empty(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.InterpolationMode = InterpolationMode  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)

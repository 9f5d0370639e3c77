"""Find `sparkloom_exl3.so`, load it into torch once, register the fakes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sparkloom.errors import Exit, SparkloomError

NAME = "sparkloom_exl3.so"
VARIABLE = "SPARKLOOM_KERNELS"


def candidates(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Where the library may be, best first: the variable, this package, a source tree's build folder."""
    here = Path(__file__).resolve().parent
    found = []
    if value := env.get(VARIABLE, "").strip():
        path = Path(value)
        found.append(path / NAME if path.is_dir() else path)
    found.append(here / NAME)
    found += [parent / "kernels" / "build" / NAME for parent in here.parents if (parent / "kernels").is_dir()]
    return found


def find_library(env: Mapping[str, str] = os.environ) -> Path | None:
    """The library's file, or None.

    Raises:
        SparkloomError: the variable names a file that is not there.
    """
    tried = candidates(env)
    for index, path in enumerate(tried):
        if path.is_file():
            return path
        if index == 0 and env.get(VARIABLE, "").strip():
            raise SparkloomError(
                "the kernel library is not there",
                field=VARIABLE,
                value=str(path),
                mend=f"build it (kernels/README.md) or unset {VARIABLE}",
                code=Exit.RESOURCE,
            )
    return None


@cache
def load() -> ctypes.CDLL:
    """Load the library into torch and register the fake implementations.

    Returns:
        The same library for its plain C functions (scratch sizes).

    Raises:
        SparkloomError: not found, or torch refuses it.
    """
    import torch

    path = find_library()
    if path is None:
        raise SparkloomError(
            "the EXL3 kernel library is not built",
            value=NAME,
            mend=f"build kernels/ with CMake (kernels/README.md), or point {VARIABLE} at the library",
            code=Exit.RESOURCE,
        )
    try:
        torch.ops.load_library(str(path))
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise SparkloomError(
            "torch cannot load the EXL3 kernel library",
            file=path,
            detail=str(error),
            mend="rebuild it on this machine; it needs torch 2.10 or later",
            code=Exit.RESOURCE,
        ) from error
    library.sparkloom_exl3_moe_workspace.restype = ctypes.c_int64
    library.sparkloom_exl3_linear_workspace.restype = ctypes.c_int64
    library.sparkloom_exl3_encode_workspace.restype = ctypes.c_int64
    from sparkloom.kernels import fakes

    fakes.register()
    return library


def available() -> str | None:
    """None if the kernels can run on this machine's first CUDA device, otherwise the reason.

    Creates no device context.
    """
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    if find_library() is None:
        return f"{NAME} is not built"
    return None

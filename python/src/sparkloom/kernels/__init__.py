"""EXL3 CUDA kernels: `torch.ops.sparkloom_exl3.*` and a checked Python API around them.

The library is built from `kernels/` (see its README); `load()` finds and loads it once.
Importing this package needs neither torch nor CUDA.
"""

from __future__ import annotations

from sparkloom.kernels.loader import available, find_library, load

__all__ = ["available", "find_library", "load"]

"""A tiny checkpoint of the true architecture: GLM-5.3-Flash's names, shapes' proportions and config keys,
random weights, EXL3 experts. Made in seconds, for tests and for the demo; it says nothing sensible.
"""

from __future__ import annotations

from sparkloom.tiny.checkpoint import write

__all__ = ["write"]

"""Reads the installed vLLM's sources without importing it (which takes many seconds)."""

from __future__ import annotations

import ast
import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest


@cache
def folder() -> Path:
    """The folder of the installed package `vllm` (or of the one unpacked at SPARKLOOM_VLLM_SOURCES, to look
    at another version); skips the test where there is none.
    """
    if given := os.environ.get("SPARKLOOM_VLLM_SOURCES"):
        return Path(given)
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed: its sources cannot be compared")
    return Path(spec.origin).parent


@cache
def text(module: str) -> str:
    """Source text of `module`, a path under the package such as "platforms/cpu.py"."""
    return (folder() / module).read_text()


@cache
def definition(module: str, name: str) -> str:
    """Source of one function or class of `module`; `name` may be dotted ("Class.method")."""
    source = text(module)
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        node = next(
            n
            for n in ast.walk(node)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == part
        )
    found = ast.get_source_segment(source, node)
    assert found is not None
    return found

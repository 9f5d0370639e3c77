"""Field descriptions: the string under each field of a section, read from the source when asked for.

pydantic can collect them itself, but does so at every import, which would double the start-up time of
commands that never show one.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache

from pydantic import BaseModel


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Class name -> field name -> description, for one module."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                fields[field.target.id] = " ".join(text.value.value.split())
    return found


def of_section(section: type[BaseModel]) -> dict[str, str]:
    """Field name -> description in one line, for one section class."""
    return _of_module(section.__module__).get(section.__name__, {})

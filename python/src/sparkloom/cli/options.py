"""Options that every command shares, and the way to print a result as text or JSON."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """How a command prints its result."""

    text = "text"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Output for people or for programs.")]


def new_app(help: str) -> typer.Typer:
    """A Typer with this project's settings (plain tracebacks stay with `main`)."""
    return typer.Typer(help=help, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))

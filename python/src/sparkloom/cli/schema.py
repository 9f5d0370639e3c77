"""`sparkloom schema`: the JSON Schema of the cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Print the JSON Schema of the cluster file.")
app.info.no_args_is_help = False


@app.command(no_args_is_help=False)
def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print the fields as Markdown tables.")] = False,
    format: FormatOption = Format.json,
) -> None:
    """Print the JSON Schema (draft 2020-12) of the cluster file."""
    if markdown:
        from sparkloom.cluster.reference import markdown as fields

        print(fields(), end="")
        return
    from sparkloom.cluster.schema import json_schema

    if output is None:
        print_json(json_schema())
        return
    from sparkloom.fsio import write_json

    write_json(output, json_schema())

"""`sparkloom explain`: every final value of a cluster file and where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Show every final value and where it came from.")


@app.command()
def explain(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")],
    field: Annotated[
        str | None, typer.Argument(help="A field or a section, for example serving.context_tokens.")
    ] = None,
    fabric: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=FILE", help="Output of `fabric show --format json` of a node."),
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Show final values with their origin: file, profile, model default or detected."""
    from sparkloom.cluster import load
    from sparkloom.cluster.explain import explanations
    from sparkloom.cluster.profiles import PROFILES
    from sparkloom.errors import Exit, SparkloomError
    from sparkloom.plan.inputs import named_files

    loaded = load(cluster)
    files = named_files(fabric or [], "--fabric", loaded)
    rows = explanations(loaded, files)
    if field is not None:
        chosen = {k: v for k, v in rows.items() if k == field or k.startswith((f"{field}.", f"{field}["))}
        if not chosen:
            import difflib

            close = difflib.get_close_matches(field, rows, n=1)
            raise SparkloomError(
                f"no field {field!r}",
                file=cluster,
                field=field,
                mend=f"did you mean {close[0]!r}?" if close else "see `sparkloom schema`",
                code=Exit.USAGE,
            )
        rows = chosen
    trade = PROFILES[loaded.profile].trade
    if format is Format.json:
        print_json(
            {
                "file": str(cluster),
                "profile": loaded.profile.value,
                "trade": trade,
                "values": {
                    k: {"value": v.value, "origin": v.origin.value, "note": v.note} for k, v in rows.items()
                },
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("field", "value", "origin", "note"):
        table.add_column(
            column,
            overflow="fold",
            no_wrap=column in ("field", "origin"),
            style="dim" if column == "note" else None,
        )
    styles = {"file": "bold", "profile": "cyan", "detected": "green"}
    for path, item in rows.items():
        value = item.value if isinstance(item.value, str) else json.dumps(item.value)
        table.add_row(path, value, item.origin.value, item.note, style=styles.get(item.origin.value))
    console = Console(highlight=False)
    console.print(f"profile {loaded.profile.value}: {trade}")
    console.print(table)

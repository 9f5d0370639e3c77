"""`sparkloom import-env .env`: a recipe's settings become a cluster file, every knob accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from sparkloom.migrate.convert import Row

app = new_app("Turn a recipe's environment file into a cluster file.")


@app.command()
def import_env(
    env: Annotated[Path, typer.Argument(help="Environment file of a recipe.")],
    out: Annotated[Path | None, typer.Option(help="Cluster file to write; default: only show.")] = None,
    accept_licence: Annotated[
        bool, typer.Option(help="You accept CC BY-NC-ND 4.0 of the DFlash2 weights (non-commercial).")
    ] = False,
    force: Annotated[bool, typer.Option(help="Replace an existing cluster file.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Convert ENV; say for every knob what became of it. Exit 3 when the result does not validate."""
    from sparkloom.cluster.load import parse as check
    from sparkloom.migrate.convert import convert
    from sparkloom.migrate.envfile import parse

    try:
        text = env.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SparkloomError(f"cannot read it: {error}", file=env, mend="give the recipe's .env") from error
    cluster, rows = convert(parse(text, str(env)), accept_licence)
    problem = None
    try:
        check(cluster, file=str(out or "the result"))
    except SparkloomError as error:
        problem = error
    if out is not None:
        if out.exists() and not force:
            raise SparkloomError(
                "the cluster file exists already", file=out, mend="give another --out, or --force"
            )
        from sparkloom import fsio

        fsio.write_json(out, cluster)
    if format is Format.json:
        print_json(
            {
                "cluster": cluster,
                "knobs": [r.as_dict() for r in rows],
                "valid": problem is None,
                "problem": None if problem is None else problem.as_dict()["error"],
            }
        )
    else:
        show(rows)
        if out is None:
            print_json(cluster)
    if problem is not None:
        if format is Format.json:
            raise typer.Exit(int(Exit.CHECK))
        problem.code = Exit.CHECK
        raise problem


def show(rows: list[Row]) -> None:
    """The account as a table on standard error (standard output stays the cluster file)."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title="what became of each knob")
    for head in ("knob", "line", "outcome", "field", "remark"):
        grid.add_column(head, overflow="fold")
    for row in rows:
        d = row.as_dict()
        grid.add_row(d["knob"], str(d["line"]), d["outcome"], d["field"] or "", d["remark"])
    Console(stderr=True).print(grid)

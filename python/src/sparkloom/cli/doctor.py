"""`sparkloom doctor`: everything that can be checked before a start, one verdict, the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.findings import exit_code, print_text

app = new_app("Validate, plan, fabric, preflight, weights: one verdict and the next step.")


@app.command()
def doctor(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")],
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Which node of the file this is.")],
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Read this tree or capture archive instead.")
    ] = Path("/"),
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 1).")] = False,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="CHECK", help="Leave a preflight check out.")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Run every check in order. Exit 0: ready, 1: warnings with --strict, 3: not ready."""
    from sparkloom.capture import opened
    from sparkloom.preflight.doctor import examine

    with opened(root) as tree:
        found = examine(cluster, node, tree, skip or ())
    if format is Format.json:
        print_json({"node": node, **found.as_dict(strict=strict)})
    else:
        for step in found.steps:
            if step.skipped:
                print(f"{step.name}: skipped")
            else:
                print_text(step.findings, title=step.name, total=False)
        print(f"\nverdict: {found.verdict}")
        print(f"next step: {found.next_step}")
    raise typer.Exit(exit_code(found.findings, strict=strict))

"""`sparkloom preflight`: is this node ready for a rank?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError
from sparkloom.findings import exit_code, print_text, report_dict

app = new_app("Check a node before a rank starts.")

ClusterArgument = Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")]
NodeOption = Annotated[str, typer.Option("--node", metavar="NAME", help="Which node of the file this is.")]
RootOption = Annotated[
    Path,
    typer.Option("--root", metavar="DIR", help="Read this tree (or capture archive) instead of the machine."),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 1).")]
NamesOption = Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Can be given several times.")]


@app.command()
def preflight(
    cluster: ClusterArgument,
    node: NodeOption,
    root: RootOption = Path("/"),
    strict: StrictOption = False,
    only: NamesOption = None,
    skip: NamesOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Check kernel, driver, NCCL, memory, ports, GPU, disk, fabric. Exit 0, 1 (--strict) or 3."""
    from sparkloom.capture import opened
    from sparkloom.cluster import load
    from sparkloom.preflight import CHECKS, context, run_checks

    for name in [*(only or []), *(skip or [])]:
        if name not in CHECKS:
            mend = f"one of: {', '.join(CHECKS)}"
            raise SparkloomError("no such check", field="CHECK", value=name, mend=mend, code=Exit.USAGE)
    loaded = load(cluster)
    with opened(root) as tree:
        findings = run_checks(context(loaded, node, tree), only or (), skip or ())
    if format is Format.json:
        print_json({"node": node, "root": str(root), **report_dict(findings, strict=strict)})
    else:
        print_text(findings, title=f"preflight of {node}")
    raise typer.Exit(exit_code(findings, strict=strict))

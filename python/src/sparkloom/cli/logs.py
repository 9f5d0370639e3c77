"""`sparkloom logs`: the ranks' logs of both nodes, by generation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

app = new_app("Logs of both ranks, of the newest or a given generation.")


@app.command()
def logs(
    generation: Annotated[int | None, typer.Option("--generation", "-g", help="Launch number.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines per node.")] = 100,
    node: Annotated[str | None, typer.Option("--node", help="Only this node.")] = None,
    socket: Annotated[Path | None, typer.Option("--socket", help="Control socket.")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Print the last lines of each rank's log."""
    from sparkloom.agent.remote import Remote, socket_path

    with Remote(socket_path(socket)) as remote:
        found = remote.gather("logs", {"generation": generation, "lines": lines})
    if node is not None:
        if node not in found:
            raise SparkloomError(
                "no such node", field="--node", value=node, mend="use one of " + ", ".join(found)
            )
        found = {node: found[node]}
    if format is Format.json:
        print_json(found)
    else:
        for name, answer in found.items():
            for line in answer.get("lines", []):
                print(f"{name} | {line}")
            if answer.get("problem"):
                print(f"{name} | ({answer['problem']})")
    if all(a.get("problem") for a in found.values()):
        raise SystemExit(int(Exit.CHECK))

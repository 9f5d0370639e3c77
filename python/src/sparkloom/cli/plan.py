"""`sparkloom plan`: does it fit, on every node, in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Sum up the memory of every node and say whether the cluster file fits.")


@app.command()
def plan(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")],
    meminfo: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=FILE", help="A saved /proc/meminfo of a node; once per node."),
    ] = None,
    node: Annotated[str | None, typer.Option(help="This machine is this node: read its memory live.")] = None,
    root: Annotated[Path, typer.Option(help="Read the live numbers below this folder.")] = Path("/"),
    min_free_kbytes: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=N", help="vm.min_free_kbytes of a node whose meminfo is a file."),
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Plan the memory. Exit code 0: fits, 3: does not fit (with both sums and what would fit)."""
    from sparkloom.cluster import load
    from sparkloom.cluster.render import node_named
    from sparkloom.errors import Exit, SparkloomError
    from sparkloom.plan.inputs import gather, named_files
    from sparkloom.plan.planner import plan as decide

    loaded = load(cluster)
    if node is not None:
        node = node_named(loaded, node)[1].name
    files = named_files(meminfo or [], "--meminfo", loaded)
    floors: dict[str, int] = {}
    for name, text in named_files(min_free_kbytes or [], "--min-free-kbytes", loaded).items():
        if not str(text).isdecimal():
            raise SparkloomError(
                "--min-free-kbytes needs a number of KiB",
                value=str(text),
                mend=f"--min-free-kbytes {name}=67584",
                code=Exit.USAGE,
            )
        floors[name] = int(str(text))
    decided = decide(loaded, gather(loaded, files, node=node, root=root, min_free_kbytes=floors))
    if format is Format.json:
        print_json(decided.as_dict())
    else:
        from sparkloom.plan.show import show

        show(decided)
    if not decided.fits:
        raise typer.Exit(Exit.CHECK)

"""`sparkloom plan`: does it fit, on every node, in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

if TYPE_CHECKING:
    from sparkloom.logs.phases import RankLog

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
    rank_log: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=FILE", help="A rank's log, to see the plan beside what was measured."),
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
    logs = {name: _log(path) for name, path in named_files(rank_log or [], "--rank-log", loaded).items()}
    if format is Format.json:
        document = decided.as_dict()
        if logs:
            from sparkloom.plan.measured import as_dict

            document["measured"] = as_dict(decided, logs)
        print_json(document)
    else:
        from sparkloom.plan.show import show

        show(decided)
        if logs:
            from sparkloom.plan.measured import lines

            print("\n".join(lines(decided, logs)) or "the logs have no figures")
    if not decided.fits:
        raise typer.Exit(Exit.CHECK)


def _log(path: Path) -> RankLog:
    from sparkloom.errors import SparkloomError
    from sparkloom.logs.phases import of_text

    try:
        return of_text(path.read_text("utf-8", "replace"))
    except OSError as error:
        raise SparkloomError(
            f"cannot read the log: {error.strerror}", file=path, mend="give a log of this rank"
        ) from None

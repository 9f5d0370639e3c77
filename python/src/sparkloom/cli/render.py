"""`sparkloom render`: flags and environment of one rank."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

if TYPE_CHECKING:
    from sparkloom.cluster import Cluster

app = new_app("Print the exact flags and environment of one rank.")


@app.command()
def render(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")],
    node: Annotated[str, typer.Option(help="Name of the node.")],
    fabric: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=FILE", help="Output of `fabric show --format json` of a node."),
    ] = None,
    meminfo: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=FILE", help="Also refuse what does not fit in this memory."),
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Print the rank's program, flags and environment. Secrets appear as file names only."""
    from sparkloom.cluster import load
    from sparkloom.cluster.render import node_named, render
    from sparkloom.plan.inputs import named_files

    loaded = load(cluster)
    node = node_named(loaded, node)[1].name
    files = named_files(fabric or [], "--fabric", loaded)
    if meminfo:
        _must_fit(loaded, named_files(meminfo, "--meminfo", loaded))
    rails = None
    if node in files:
        from sparkloom.fabric.peers import rails_from_report

        rails = rails_from_report(_report(files[node]), files[node])
    rendered = render(loaded, node, rails=rails)
    if format is Format.json:
        print_json(rendered.as_dict())
        return
    print(f"# {rendered.node}: rank {rendered.rank}, digest {rendered.digest}")
    for name, value in rendered.env.items():
        print(f"export {name}={shlex.quote(value)}")
    for name, reason in rendered.unresolved.items():
        print(f"# {name}: {reason}")
    for name, path in rendered.secret_files.items():
        print(f"# {name}: first line of {path}, set at launch")
    print("exec " + " \\\n  ".join(_lines(rendered.argv)))


def _lines(argv: tuple[str, ...]) -> list[str]:
    """One flag with its values per line."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines if line]


def _report(path: Path) -> object:
    from sparkloom.errors import SparkloomError

    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise SparkloomError(
            f"cannot read a fabric report: {error}",
            file=path,
            mend="save the output of `sparkloom fabric show --format json` on that node",
        ) from None


def _must_fit(cluster: Cluster, meminfo: dict[str, Path]) -> None:
    from sparkloom.errors import Exit, SparkloomError
    from sparkloom.plan.inputs import gather
    from sparkloom.plan.planner import plan
    from sparkloom.plan.show import refusal

    decided = plan(cluster, gather(cluster, meminfo))
    if not decided.fits:
        raise SparkloomError(refusal(decided), mend="; or ".join(decided.mends), code=Exit.CHECK)

"""`sparkloom validate`: check a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Check a cluster file; every problem is listed at once.")

ClusterArgument = Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")]


@app.command()
def validate(
    cluster: ClusterArgument,
    strict: Annotated[bool, typer.Option(help="Warnings make exit code 1.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Check a cluster file. Exit code 0: good, 1: warnings with --strict, 4: problems (all are listed)."""
    from sparkloom.cluster import digest, load, settings
    from sparkloom.cluster.notes import notes
    from sparkloom.errors import Exit

    loaded = load(cluster)
    found = notes(loaded)
    final = settings(loaded)
    document = {
        "valid": True,
        "file": str(cluster),
        "name": loaded.name,
        "profile": loaded.profile.value,
        "nodes": [{"name": n.name, "role": n.role.value, "rank": i} for i, n in enumerate(loaded.ranks)],
        "digest": digest(loaded),
        "findings": [finding.as_dict() for finding in found],
    }
    if format is Format.json:
        print_json(document)
        raise typer.Exit(Exit.WARN if found and strict else Exit.OK)
    nodes = ", ".join(f"{n.name} (rank {i})" for i, n in enumerate(loaded.ranks))
    print(f"{cluster}: good")
    print(f"  profile  {loaded.profile.value}, drafter {final.drafter.value}, {final.context_tokens} tokens")
    print(f"  nodes    {nodes}")
    print(f"  digest   {document['digest']}")
    for finding in found:
        print(f"warn: {finding.summary}; {finding.mend}")
    raise typer.Exit(Exit.WARN if found and strict else Exit.OK)

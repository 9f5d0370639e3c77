"""`sparkloom units`: systemd units for DGX OS from the cluster file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from sparkloom import fsio
from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import SparkloomError

app = new_app("Write the systemd units of one node (DGX OS, Ubuntu, Debian).")


@app.command()
def units(
    cluster: Annotated[Path, typer.Argument(help="Cluster file.")],
    node: Annotated[str, typer.Option("--node", help="Name of this node in the cluster file.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the unit files.")],
    exec_path: Annotated[
        Path | None, typer.Option("--exec", help="The `sparkloom` program that the units call.")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="User of the service.")] = "sparkloom",
    clock_max: Annotated[int, typer.Option("--clock-max", help="GPU clock cap in MHz; 0: none.")] = 2200,
    format: FormatOption = Format.text,
) -> None:
    """Write the units. Nothing is installed or started: the last lines say how."""
    from sparkloom.cluster import load
    from sparkloom.units import UnitNeeds, render, sysusers

    loaded = load(cluster)
    names = [n.name for n in loaded.nodes]
    if node not in names:
        raise SparkloomError(
            "no such node", file=cluster, field="nodes[].name", value=node, mend="known: " + ", ".join(names)
        )
    is_head = next(n.role == "head" for n in loaded.nodes if n.name == node)
    program = exec_path or shutil.which("sparkloom") or Path(sys.argv[0])
    needs = UnitNeeds(
        exec=str(Path(program).absolute()),
        cluster=str(cluster.absolute()),
        node=node,
        agent_key_file=str(loaded.agent.key_file),
        api_key_file=str(loaded.api.key_file) if is_head and loaded.api.key_file else None,
        user=user,
        group=user,
        runtime_directory=str(Path(loaded.agent.socket).parent),
        clock_max=clock_max or None,
    )
    files = {**render(needs), "sysusers.d/sparkloom.conf": sysusers(needs)}
    for name, text in files.items():
        fsio.write_text(out / name, text)
    steps = [
        f"sudo cp {out}/*.service {out}/*.path /etc/systemd/system/",
        f"sudo cp {out}/sysusers.d/sparkloom.conf /etc/sysusers.d/ && sudo systemd-sysusers",
        "sudo systemctl daemon-reload",
        "sudo systemctl enable --now --no-block sparkloom-hygiene.path sparkloom-agent.service",
    ]
    if format is Format.json:
        print_json({"node": node, "files": [str(out / name) for name in files], "next": steps})
        return
    for name in files:
        print(out / name)
    print("next, on this node:")
    for step in steps:
        print("  " + step)

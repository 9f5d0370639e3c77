"""`sparkloom fabric`: the rails of this node, and whether two nodes agree."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom.capture import opened
from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError
from sparkloom.fabric import (
    Rail,
    choose_rails,
    compare,
    nccl_environment,
    parse_addresses,
    rails_from_report,
    read_fabric,
)
from sparkloom.fabric.environment import check_environment
from sparkloom.fabric.rails import WANTED_MTU
from sparkloom.findings import Finding, exit_code, print_text
from sparkloom.sysroot import SysRoot

if TYPE_CHECKING:
    from sparkloom.cluster.nodes import Node

app = new_app("The RoCE fabric: rails, GID entries, MTU, agreement of two nodes.")

RootOption = Annotated[
    Path, typer.Option("--root", help="Read this tree instead of the running machine.", metavar="DIR")
]
AddressOption = Annotated[
    list[str] | None,
    typer.Option("--address", help="Fabric address of this node, one per rail.", metavar="IP[,IP]"),
]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option("--device", help="Use these RDMA devices only.", metavar="NAME[,NAME]"),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 1).")]


@app.command()
def show(
    root: RootOption = Path("/"),
    address: AddressOption = None,
    device: DeviceOption = None,
    strict: StrictOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Show the rail of each fabric address with its RoCE v2 GID entry; without --address, all that are up."""
    rails, findings = rails_of(root, address, device)
    env = nccl_environment(rails)
    if SysRoot(root).live:
        findings += check_environment(dict(os.environ), env)
    result = {"rails": [r.as_dict() for r in rails], "findings": [f.as_dict() for f in findings]}
    if format is Format.json:
        print_json({**result, "environment": env})
    else:
        print_rails(rails)
        print_text(findings)
        for name, value in env.items():
            print(f"{name}={value}")
    raise typer.Exit(exit_code(findings, strict=strict))


@app.command()
def check(
    peer: Annotated[
        Path | None,
        typer.Option("--peer", help="The other node: a saved tree, or its `fabric show` as JSON."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Take addresses from this file.", metavar="FILE")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Which node of the file this is.", metavar="NAME")
    ] = None,
    root: RootOption = Path("/"),
    address: AddressOption = None,
    device: DeviceOption = None,
    peer_address: Annotated[
        list[str] | None,
        typer.Option("--peer-address", help="Fabric addresses of the other node.", metavar="IP[,IP]"),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of this node in messages.")] = "here",
    peer_name: Annotated[str, typer.Option("--peer-name", help="Name of the other node.")] = "peer",
    probe: Annotated[
        bool, typer.Option("--probe", help="Also ping the peer with full-size packets.")
    ] = False,
    strict: StrictOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Check this node's rails and compare them with another node's: count, MTU, RDMA MTU, rate, subnets."""
    mtu = WANTED_MTU
    if cluster is not None:
        here, others, mtu = _from_cluster(cluster, node)
        address, name = address or [str(a) for a in here.fabric.addresses], here.name
        device = device or [str(d) for d in here.fabric.rdma_devices or ()]
        if len(others) == 1:
            peer_address = peer_address or [str(a) for a in others[0].fabric.addresses]
            peer_name = others[0].name
    rails, findings = rails_of(root, address, device, mtu)
    peer_rails: list[Rail] = []
    if peer is not None:
        peer_rails, peer_findings = read_peer(peer, peer_address)
        findings += [_named(f, peer_name) for f in peer_findings]
        findings += compare(name, rails, peer_name, peer_rails)
    if probe:
        from sparkloom.fabric.probe import probe_mtu

        far = [str(a) for a in parse_addresses(peer_address, "--peer-address")] if peer_address else []
        far = far or [rail.address for rail in peer_rails]
        pairs = zip(rails, far, strict=False)
        findings += [probe_mtu(rail.address, to, rail.mtu or mtu) for rail, to in pairs]
    if format is Format.json:
        sides = {"rails": [r.as_dict() for r in rails], "peer_rails": [r.as_dict() for r in peer_rails]}
        print_json({**sides, "findings": [f.as_dict() for f in findings]})
    else:
        print_rails([*rails, *peer_rails])
        print_text(findings)
    raise typer.Exit(exit_code(findings, strict=strict))


def _from_cluster(file: Path, node: str | None) -> tuple[Node, list[Node], int]:
    """This node, the others and the fabric's MTU from a cluster file."""
    from sparkloom.cluster import load

    loaded = load(file)
    here = next((n for n in loaded.nodes if n.name == node), None)
    if here is None:
        names = ", ".join(n.name for n in loaded.nodes)
        mend = f"--node with one of: {names}"
        raise SparkloomError("no such node", field="--node", value=node, mend=mend, code=Exit.USAGE)
    return here, [n for n in loaded.nodes if n is not here], loaded.fabric.mtu


@app.command()
def bandwidth(
    meminfo: Annotated[
        list[str] | None,
        typer.Option("--meminfo", help="A node's /proc/meminfo; the smaller node binds.", metavar="FILE"),
    ] = None,
    size: Annotated[int | None, typer.Option("--size", help="Buffer bytes to ask for.")] = None,
    buffers: Annotated[int, typer.Option("--buffers", min=1, help="Buffers that the test holds.")] = 2,
    run: Annotated[bool, typer.Option("--run", help="Measure every rail with ib_write_bw.")] = False,
    address: AddressOption = None,
    peer_address: Annotated[
        list[str] | None,
        typer.Option("--peer-address", help="The other node's addresses; without: wait for it."),
    ] = None,
    seconds: Annotated[int, typer.Option("--seconds", min=1, max=60)] = 5,
    format: FormatOption = Format.text,
) -> None:
    """How large a test may be without freezing a node; with --run measure each rail."""
    from sparkloom.fabric import perftest
    from sparkloom.fabric.probe import bandwidth_buffer
    from sparkloom.meminfo import read_meminfo

    smallest = min(read_meminfo(Path(f))["MemAvailable"] for f in meminfo or ["/proc/meminfo"])
    chosen = bandwidth_buffer(smallest, wanted=size, buffers=buffers)
    result: dict[str, Any] = {
        "buffer_bytes": chosen.buffer_bytes, "total_bytes": chosen.total_bytes, "reason": chosen.reason,
    }  # fmt: skip
    findings: list[Finding] = []
    if run:
        rails, findings = rails_of(Path("/"), address)
        peers = [str(a) for a in parse_addresses(peer_address, "--peer-address")] if peer_address else None
        if exit_code(findings) != Exit.CHECK:
            message = min(chosen.buffer_bytes, perftest.MESSAGE)
            rates, measured = perftest.run(rails, peers, message=message, seconds=seconds)
            findings += measured
            result["rates"] = [{"rdma": rate.rdma, "gbps": rate.gbps} for rate in rates]
        result["findings"] = [f.as_dict() for f in findings]
    if format is Format.json:
        print_json(result)
    else:
        print(f"{chosen.buffer_bytes} bytes per buffer, {chosen.total_bytes} in all: {chosen.reason}")
        if run:
            print_text(findings)
    raise typer.Exit(exit_code(findings))


def rails_of(
    root: Path, address: list[str] | None, device: list[str] | None = None, mtu: int = WANTED_MTU
) -> tuple[list[Rail], list[Finding]]:
    """Read the tree at `root` and choose its rails.

    Raises:
        SparkloomError: `root` is no folder, or an address is wrong.
    """
    addresses = parse_addresses(address) if address else []
    devices = [name for text in device or [] for name in text.split(",") if name]
    with opened(root) as tree:
        return choose_rails(read_fabric(tree), addresses, devices, mtu=mtu)


def read_peer(peer: Path, address: list[str] | None) -> tuple[list[Rail], list[Finding]]:
    """The peer's rails from a saved tree or a JSON report."""
    if peer.is_dir() or (peer.is_file() and tarfile.is_tarfile(peer)):
        addresses = parse_addresses(address, "--peer-address") if address else []
        with opened(peer) as tree:
            return choose_rails(read_fabric(tree), addresses)
    try:
        report: Any = json.loads(peer.read_bytes())
    except OSError as error:
        raise SparkloomError(
            f"cannot read the peer's report: {error.strerror}", file=peer, mend="give a tree or a JSON report"
        ) from None
    except (ValueError, RecursionError) as error:
        mend = "save it with `sparkloom fabric show --format json` on the peer"
        raise SparkloomError(f"the peer's report is no JSON: {error}", file=peer, mend=mend) from None
    return rails_from_report(report, peer), []


def _named(finding: Finding, node: str) -> Finding:
    import dataclasses

    return dataclasses.replace(finding, summary=f"{node}: {finding.summary}")


def print_rails(rails: list[Rail]) -> None:
    """The rails as a table for people; never cut, so that it can be pasted."""
    rows: list[tuple[str, ...]] = [
        ("interface", "rdma", "address", "GID", "kind", "MTU", "RDMA MTU", "link", "rate")
    ]
    for rail in rails:
        link = "?" if rail.carrier is None else "up" if rail.carrier else "down"
        cells = (
            rail.netdev,
            rail.rdma,
            rail.address,
            rail.gid_index,
            rail.gid_type,
            rail.mtu,
            rail.active_mtu,
        )
        rows.append(tuple("-" if cell is None else str(cell) for cell in (*cells, link, rail.rate)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

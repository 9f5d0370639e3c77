"""`sparkloom weights`: the checkpoint as a verified artefact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError
from sparkloom.findings import Finding, exit_code, print_text, report_dict

if TYPE_CHECKING:
    from sparkloom.weights.targets import Target

app = new_app("Fetch, verify, bundle and share the pinned weights.")

ClusterArgument = Annotated[
    Path | None, typer.Argument(metavar="CLUSTER", help="Cluster file that pins the weights.")
]
RepoOption = Annotated[str | None, typer.Option("--repo", help="Without a cluster file: OWNER/NAME.")]
RevisionOption = Annotated[str | None, typer.Option("--revision", help="Its commit, all 40 digits.")]
PathOption = Annotated[Path | None, typer.Option("--path", help="Folder of the weights.", metavar="DIR")]
ManifestOption = Annotated[
    Path | None, typer.Option("--manifest", help="Manifest with sizes and hashes.", metavar="FILE")
]
WhichOption = Annotated[str, typer.Option("--which", help="all, model or drafter.", metavar="WHICH")]
RateOption = Annotated[float | None, typer.Option("--rate", help="At most so many MB per second.", min=0.001)]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Files at once.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 1).")]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", help="Mirror to ask before the hub (also HF_ENDPOINT).")
]
TokenOption = Annotated[
    Path | None, typer.Option("--token-file", help="File with the access token.", metavar="FILE")
]


def targets_of(
    cluster: Path | None,
    repo: str | None,
    revision: str | None,
    path: Path | None,
    manifest: Path | None = None,
    which: str = "all",
) -> list[Target]:
    """What the command line asks for: a cluster file's weights, or one repository."""
    from sparkloom.weights.targets import Target, cluster_targets

    if which not in ("all", "model", "drafter"):
        raise SparkloomError(
            "unknown kind of weights",
            field="--which",
            value=which,
            mend="all, model or drafter",
            code=Exit.USAGE,
        )
    if cluster is not None and not any((repo, revision, path)):
        return cluster_targets(cluster, which)
    if cluster is None and repo and revision and path:
        return [Target("model", repo, revision, path.absolute(), manifest)]
    raise SparkloomError(
        "name a cluster file, or all of --repo, --revision and --path", mend="see --help", code=Exit.USAGE
    )


@app.command("fetch")
def fetch_command(
    cluster: ClusterArgument = None,
    repo: RepoOption = None,
    revision: RevisionOption = None,
    path: PathOption = None,
    manifest: ManifestOption = None,
    which: WhichOption = "all",
    source: Annotated[
        str | None, typer.Option("--from", help="Another node's share, or a bundle file.", metavar="URL|FILE")
    ] = None,
    endpoint: EndpointOption = None,
    token_file: TokenOption = None,
    fallback_repo: Annotated[str | None, typer.Option("--fallback-repo", help="Byte mirror.")] = None,
    jobs: JobsOption = 4,
    rate: RateOption = None,
    stall: Annotated[float, typer.Option("--stall", min=0.1, help="Seconds without a byte.")] = 30.0,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Attempts without progress.")] = 5,
    prune: Annotated[bool, typer.Option("--prune", help="Remove shards of other revisions.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Bring the folder to exactly the pinned revision. A cut download goes on where it ended."""
    import dataclasses

    from sparkloom.weights.download import Options
    from sparkloom.weights.hashing import RateLimit
    from sparkloom.weights.hub import check_revision, endpoints, read_token
    from sparkloom.weights.obtain import obtain
    from sparkloom.weights.progress import Bars

    targets = targets_of(cluster, repo, revision, path, manifest, which)
    for target in targets:
        check_revision(target.revision)
    limit = RateLimit(rate * 1e6) if rate else None
    results: list[dict[str, Any]] = []
    if source is not None and "://" not in source:
        results.append(_from_bundle(Path(source), targets, limit))
    else:
        token = None if source else read_token(token_file)
        options = Options(stall_s=stall, attempts=attempts, token=token, limit=limit)
        for target in targets:
            if fallback_repo:
                target = dataclasses.replace(target, fallback_repo=fallback_repo)
            with Bars(target.name) as bars:
                found, done = obtain(
                    target, endpoints(endpoint), options, peer=source, jobs=jobs, prune=prune, reporter=bars
                )
            results.append(
                {
                    "name": target.name, "repo": found.repo, "revision": found.revision,
                    "path": str(target.path), "fetched": list(done.fetched), "kept": list(done.kept),
                    "bytes": done.bytes, "pruned": list(done.pruned),
                }
            )  # fmt: skip
    if format is Format.json:
        print_json({"targets": results})
        return
    for row in results:
        kept, new = len(row["kept"]), len(row["fetched"])
        print(
            f"{row['name']}: {row['path']} is {row['repo']} at {row['revision']}: {new} fetched, {kept} kept"
        )


def _from_bundle(bundle: Path, targets: list[Target], limit: Any) -> dict[str, Any]:
    from sparkloom.weights.bundle import unpack
    from sparkloom.weights.progress import Total

    target = targets[0] if len(targets) == 1 else None
    if target is None:
        raise SparkloomError(
            "a bundle holds one kind of weights", field="--which",
            mend="give --which model or --which drafter", code=Exit.USAGE,
        )  # fmt: skip
    size = bundle.stat().st_size if bundle.is_file() else 0
    with Total("unpack", size) as bar:
        found = unpack(bundle, target.path, target.revision, limit, bar)
    return {
        "name": target.name, "repo": found.repo, "revision": found.revision, "path": str(target.path),
        "fetched": [entry.path for entry in found.files], "kept": [], "bytes": found.bytes, "pruned": [],
    }  # fmt: skip


@app.command("verify")
def verify_command(
    cluster: ClusterArgument = None,
    repo: RepoOption = None,
    revision: RevisionOption = None,
    path: PathOption = None,
    manifest: ManifestOption = None,
    which: WhichOption = "all",
    online: Annotated[bool, typer.Option("--online", help="Ask the hub for sizes and hashes.")] = False,
    endpoint: EndpointOption = None,
    token_file: TokenOption = None,
    world: Annotated[int | None, typer.Option("--world", min=1, help="Ranks it is loaded by.")] = None,
    jobs: JobsOption = 1,
    rate: RateOption = None,
    strict: StrictOption = False,
    format: FormatOption = Format.text,
) -> None:
    """Hash every file once, then check config, index and headers. A second run reads metadata only."""
    from sparkloom.weights.hashing import RateLimit
    from sparkloom.weights.hub import Source, endpoints, read_token, resolve
    from sparkloom.weights.progress import Total
    from sparkloom.weights.report import verify_target

    limit = RateLimit(rate * 1e6) if rate else None
    rows, findings = [], []
    ranks, method = _loading(cluster, world)
    for target in targets_of(cluster, repo, revision, path, manifest, which):
        known = target.known_manifest() if not online else None
        if online:
            source = Source(endpoints(endpoint)[0], target.repo, target.revision)
            known = resolve(source, read_token(token_file))
        with Total(f"hash {target.name}", known.bytes if known else 0) as bar:
            row, found = verify_target(
                target,
                known,
                limit=limit,
                jobs=jobs,
                world=ranks,
                quantization=method if target.name == "model" else None,
                progress=bar,
            )
        rows.append(row)
        findings += found
    _finish(rows, findings, strict, format)


@app.command("status")
def status_command(
    cluster: ClusterArgument = None,
    repo: RepoOption = None,
    revision: RevisionOption = None,
    path: PathOption = None,
    manifest: ManifestOption = None,
    which: WhichOption = "all",
    strict: StrictOption = False,
    format: FormatOption = Format.text,
) -> None:
    """What is there, what is verified, what is unfinished. Reads metadata only."""
    from sparkloom.weights.report import status_target

    rows, findings = [], []
    for target in targets_of(cluster, repo, revision, path, manifest, which):
        row, found = status_target(target)
        rows.append(row)
        findings += found
    _finish(rows, findings, strict, format)


def _loading(cluster: Path | None, world: int | None) -> tuple[int, str | None]:
    """Ranks and quantisation that the checkpoint is checked for; no method without a cluster file."""
    if cluster is None:
        return world or 1, None
    from sparkloom.cluster import load

    loaded = load(cluster)
    return world or loaded.world, loaded.model.quantization


def _finish(rows: list[dict[str, Any]], findings: list[Finding], strict: bool, format: Format) -> None:
    if format is Format.json:
        print_json({"targets": rows, **report_dict(findings, strict=strict)})
    else:
        for row in rows:
            share = (
                f"{row['bytes_present'] / 1e9:.1f} of {row['bytes'] / 1e9:.1f} GB" if row["bytes"] else "?"
            )
            print(f"{row['name']}: {row['path']} ({row['repo']} at {row['revision'][:12]}): {share}")
        print_text(findings)
    raise typer.Exit(exit_code(findings, strict=strict))


@app.command("bundle")
def bundle_command(
    out: Annotated[Path, typer.Option("--out", help="Bundle to write.", metavar="FILE.tar")],
    cluster: ClusterArgument = None,
    repo: RepoOption = None,
    revision: RevisionOption = None,
    path: PathOption = None,
    manifest: ManifestOption = None,
    which: WhichOption = "model",
    rate: RateOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Write one file for a site without internet; `weights fetch --from FILE` takes it there."""
    from sparkloom.weights.bundle import pack
    from sparkloom.weights.hashing import RateLimit
    from sparkloom.weights.progress import Total

    (target,) = targets_of(cluster, repo, revision, path, manifest, which if which != "all" else "model")
    known = target.known_manifest()
    if known is None:
        raise no_manifest(target)
    limit = RateLimit(rate * 1e6) if rate else None
    with Total("pack", known.bytes) as bar:
        size = pack(target.place(), known, out, limit, bar)
    if format is Format.json:
        print_json({"path": str(out), "bytes": size, "files": len(known.files), "revision": known.revision})
    else:
        print(f"{out}: {len(known.files)} files, {size / 1e9:.2f} GB, revision {known.revision}")


@app.command("serve")
def serve_command(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="Path of the cluster file.")],
    node: Annotated[str, typer.Option("--node", help="Which node of the file this is.", metavar="NAME")],
    bind: Annotated[str | None, typer.Option("--bind", help="Fabric address to listen on.")] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8772,
    which: WhichOption = "all",
    nfs: Annotated[bool, typer.Option("--nfs", help="Print an NFS export instead of serving.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Share verified weights read-only with the other nodes, on the fabric only, until interrupted."""
    import ipaddress

    from sparkloom.cluster import load
    from sparkloom.weights.report import status_target
    from sparkloom.weights.share import Share, nfs_export, run_share, share_address

    loaded = load(cluster)
    chosen = next((n for n in loaded.nodes if n.name == node), None)
    if chosen is None:
        names = ", ".join(n.name for n in loaded.nodes)
        raise SparkloomError(
            "no such node", field="--node", value=node, mend=f"one of: {names}", code=Exit.USAGE
        )
    fabric = [str(a) for a in chosen.fabric.addresses]
    address, network = share_address(bind, fabric, loaded.fabric.prefix_length)
    targets = targets_of(cluster, None, None, None, None, which)
    if nfs:
        lines = [{"name": t.name, **nfs_export(t.path, address, network)} for t in targets]
        print_json({"exports": lines})
        return
    shares = []
    for target in targets:
        known = target.known_manifest()
        if known is None:
            raise no_manifest(target)
        row, findings = status_target(target)
        if not row["complete"]:
            raise SparkloomError(
                f"the {target.name} is not complete and verified", file=target.path,
                detail="\n".join(f"{f.summary}\n{f.detail}" for f in findings if f.level != "ok"),
                mend="`sparkloom weights fetch` and `verify` first", code=Exit.CHECK,
            )  # fmt: skip
        shares.append(Share(target.name, target.place().folder, known))
    networks = [ipaddress.ip_network(f"{a}/{loaded.fabric.prefix_length}", strict=False) for a in fabric]
    print(f"sharing {', '.join(s.name for s in shares)} on http://{address}:{port} for {network}", flush=True)
    print(f"on the other node: sparkloom weights fetch CLUSTER --from http://{address}:{port}", flush=True)
    run_share(shares, address, port, networks)


def no_manifest(target: Target) -> SparkloomError:
    """The error for weights of which nobody knows what they should be."""
    return SparkloomError(
        f"there is no manifest of the {target.name}", file=target.path,
        mend="`sparkloom weights verify --online` or `weights fetch` asks the hub for it", code=Exit.CHECK,
    )  # fmt: skip

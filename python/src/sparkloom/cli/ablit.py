"""`sparkloom ablit`: weight edits at load, off by default: plan, fetch, verify, show, record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from sparkloom.ablit.donor import Hub, Local, Where
    from sparkloom.ablit.spec import Spec
    from sparkloom.cluster import Cluster
    from sparkloom.exl3.checkpoint import Checkpoint

app = new_app(
    "Weight edits at load, off by default: fetch a donor's tensors, verify them, show what changes."
)

ClusterArgument = Annotated[Path, typer.Argument(metavar="CLUSTER", help="Cluster file with an edit.")]
FromOption = Annotated[
    Path | None,
    typer.Option("--from", help="Folder with the donor's files, no hub.", metavar="DIR"),
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", help="Mirror to ask before the hub (also HF_ENDPOINT).")
]
TokenOption = Annotated[
    Path | None, typer.Option("--token-file", help="File with the access token.", metavar="FILE")
]
StallOption = Annotated[float, typer.Option("--stall", min=0.1, help="Seconds without a byte.")]
AttemptsOption = Annotated[int, typer.Option("--attempts", min=1, help="Attempts without progress.")]


def opened(
    cluster: Cluster, source: Path | None, endpoint: str | None, token_file: Path | None,
    stall: float, attempts: int,
) -> Hub | Local:  # fmt: skip
    """The donor: a folder, or a repository on a hub."""
    from sparkloom.ablit.donor import Hub, Local
    from sparkloom.weights.download import Options
    from sparkloom.weights.hub import Source, endpoints, read_token

    edit = cluster.ablit
    repo, revision = str(edit.donor_repo), str(edit.donor_revision)
    if source is not None:
        return Local(source, repo, revision)
    options = Options(stall_s=stall, attempts=attempts, token=read_token(token_file))
    return Hub([Source(e, repo, revision) for e in endpoints(endpoint)], Path(edit.path), options, note)


def note(text: str) -> None:
    """A line about the download, on standard error."""
    import sys

    print(text, file=sys.stderr)


def checkpoint_of(cluster: Cluster) -> Checkpoint:
    """The checkpoint that is edited, by its headers."""
    from sparkloom.exl3.checkpoint import load
    from sparkloom.weights.places import find_place

    model = cluster.model
    return load(find_place(Path(model.path), model.repo, model.revision).folder)


def survey(spec: Spec, cluster: Cluster, donor: Hub | Local) -> tuple[dict[str, Where], list[Any]]:
    """Where the donor's tensors are, and every reason against the edit."""
    from sparkloom.ablit.verify import geometry, table

    ours = table(checkpoint_of(cluster))
    places = donor.places(list(spec.tensors.values()))
    return places, geometry(spec, ours, {n: (w.dtype, w.shape) for n, w in places.items()})


@app.command()
def plan(
    cluster_file: ClusterArgument,
    source: FromOption = None,
    endpoint: EndpointOption = None,
    token_file: TokenOption = None,
    stall: StallOption = 30.0,
    attempts: AttemptsOption = 5,
    format: FormatOption = Format.text,
) -> None:
    """What would be fetched and edited, from the headers alone; exit 3 when something does not fit."""
    from sparkloom.ablit.spec import wanted
    from sparkloom.cluster import load

    cluster = load(cluster_file)
    spec = wanted(cluster, cluster_file)
    donor = opened(cluster, source, endpoint, token_file, stall, attempts)
    try:
        places, problems = survey(spec, cluster, donor)
    finally:
        donor.close()
    rows = [
        {
            "tensor": ours, "donor_tensor": theirs, "fits": not any(p.tensor == ours for p in problems),
            "donor_file": places[theirs].file if theirs in places else None,
            "bytes": places[theirs].bytes if theirs in places else None,
        }
        for ours, theirs in spec.tensors.items()
    ]  # fmt: skip
    total = sum(row["bytes"] or 0 for row in rows)  # type: ignore[misc]
    if format is Format.json:
        said = [{"tensor": p.tensor, "problem": p.problem, "mend": p.mend} for p in problems]
        print_json(
            {"method": spec.method, "donor": f"{donor.repo}@{donor.revision}", "tensors": rows,
             "bytes": total, "problems": said}
        )  # fmt: skip
    else:
        print(f"{spec.method} of {len(rows)} tensors from {donor.repo} at {donor.revision}")
        print(f"to fetch: {total / 1e9:.3f} GB into {spec.folder}")
        for problem in problems:
            print(f"does not fit: {problem}\n  mend: {problem.mend}")
    if problems:
        raise typer.Exit(int(Exit.CHECK))


@app.command("fetch")
def fetch_command(
    cluster_file: ClusterArgument,
    source: FromOption = None,
    endpoint: EndpointOption = None,
    token_file: TokenOption = None,
    stall: StallOption = 30.0,
    attempts: AttemptsOption = 5,
    format: FormatOption = Format.text,
) -> None:
    """Fetch the needed tensors by byte ranges, resumable; prints the hash to pin in the cluster file."""
    from sparkloom.ablit.donor import fetch
    from sparkloom.ablit.spec import wanted
    from sparkloom.ablit.verify import refuse
    from sparkloom.cluster import load
    from sparkloom.weights.progress import Total

    cluster = load(cluster_file)
    spec = wanted(cluster, cluster_file)
    donor = opened(cluster, source, endpoint, token_file, stall, attempts)
    try:
        places, problems = survey(spec, cluster, donor)
        refuse(problems, donor.repo, "the donor does not fit, nothing was fetched")
        total = sum(places[theirs].bytes for theirs in spec.tensors.values())
        with Total("fetch", total) as bar:
            manifest, fetched = fetch(donor, spec, places, bar)
    finally:
        donor.close()
    same = spec.manifest_sha256 == manifest.sha256
    if format is Format.json:
        print_json(
            {"folder": spec.folder, "fetched": fetched, "kept": len(spec.tensors) - len(fetched),
             "bytes": total, "manifest_sha256": manifest.sha256, "pinned": same}
        )  # fmt: skip
    else:
        print(f"{spec.folder}: {len(fetched)} tensors fetched, {len(spec.tensors) - len(fetched)} kept")
        print(f'"manifest_sha256": "{manifest.sha256}"')
        if not same:
            print('write this line into the section "ablit" of the cluster file, on all nodes the same')
    if spec.manifest_sha256 is not None and not same:
        raise SparkloomError(
            f"the donor's bytes have the manifest {manifest.sha256}, another is pinned",
            file=cluster_file, field="ablit.manifest_sha256", value=spec.manifest_sha256,
            mend="another donor than the pinned one was fetched; write the new hash only if that is meant",
            code=Exit.CHECK,
        )  # fmt: skip


@app.command()
def verify(cluster_file: ClusterArgument, format: FormatOption = Format.text) -> None:
    """Hashes, geometry and the size of every change; writes the receipt. Exit 3 when something is wrong."""
    from sparkloom.ablit import store
    from sparkloom.ablit.spec import wanted
    from sparkloom.ablit.verify import changes, geometry, keep, receipt, refuse, table
    from sparkloom.cluster import load
    from sparkloom.weights.progress import Total

    cluster = load(cluster_file)
    spec = wanted(cluster, cluster_file)
    manifest = store.load(spec)
    checkpoint = checkpoint_of(cluster)
    given = {p.donor_tensor: (p.dtype, p.shape) for p in manifest.pieces}
    refuse(geometry(spec, table(checkpoint), given), spec.folder, "the donor does not fit")
    with Total("verify", len(manifest.pieces)) as bar:
        rows = changes(spec, checkpoint, manifest, lambda name: bar(name, 1))
    done = keep(Path(spec.folder), receipt(spec, manifest, rows))
    if format is Format.json:
        print_json({**done, "pinned": spec.manifest_sha256 == manifest.sha256})
        return
    show_rows(done)
    if spec.manifest_sha256 is None:
        print(f'not pinned yet: "manifest_sha256": "{manifest.sha256}"')


def show_rows(done: dict[str, Any]) -> None:
    """The receipt for people."""
    for row in done["tensors"]:
        print(f"{row['tensor']}: relative change {row['relative_change']:.4f}")
    change = done["relative_change"]
    print(f"{len(done['tensors'])} tensors, {done['method']}, mean relative change {change['mean']:.4f}")
    for key in ("quality", "acceptance"):
        print(f"{key}: {'not measured since the edit' if done[key] is None else done[key]}")
    if done["quality"] is None or done["acceptance"] is None:
        print(done["note"])


@app.command()
def show(cluster_file: ClusterArgument, format: FormatOption = Format.text) -> None:
    """Which layers are edited how, whether that was verified, and what was measured since."""
    from sparkloom.ablit.spec import optional
    from sparkloom.ablit.verify import read_receipt
    from sparkloom.cluster import load

    spec = optional(load(cluster_file))
    if spec is None:
        if format is Format.json:
            print_json({"method": "none", "receipt": None})
        else:
            print("no weight edit: the model is served as it is (ablit.method is none)")
        return
    done = read_receipt(Path(spec.folder))
    if done is not None and (done.get("method"), done.get("manifest_sha256")) != (
        spec.method, spec.manifest_sha256 or done.get("manifest_sha256"),
    ):  # fmt: skip
        done = None
    if format is Format.json:
        print_json({"method": spec.method, "tensors": list(spec.tensors),
                    "manifest_sha256": spec.manifest_sha256, "receipt": done})  # fmt: skip
        return
    names = list(spec.tensors)
    print(f"{spec.method} of {len(names)} tensors: {names[0]} to {names[-1]}")
    print(f"pinned: {spec.manifest_sha256 or 'no'}")
    if done is None:
        print("not verified: run `sparkloom ablit verify CLUSTER`")
    else:
        show_rows(done)


@app.command()
def record(
    cluster_file: ClusterArgument,
    quality: Annotated[
        Path | None, typer.Option(help="JSON of `quality compare` of the edited model alone.", metavar="FILE")
    ] = None,
    bench: Annotated[
        Path | None, typer.Option(help="receipt.json of `bench decode` on it.", metavar="FILE")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Write what was measured on the edited model into the receipt."""
    from sparkloom import fsio
    from sparkloom.ablit import store
    from sparkloom.ablit.spec import wanted
    from sparkloom.ablit.verify import acceptance_of, quality_of, read_receipt
    from sparkloom.cluster import load
    from sparkloom.exl3.checkpoint import read_json

    spec = wanted(load(cluster_file), cluster_file)
    folder = Path(spec.folder)
    done = read_receipt(folder)
    if done is None or done.get("manifest_sha256") != store.load(spec).sha256:
        raise SparkloomError(
            "this edit was not verified", file=folder / store.RECEIPT,
            mend="run `sparkloom ablit verify CLUSTER` first", code=Exit.CHECK,
        )  # fmt: skip
    if quality is None and bench is None:
        raise SparkloomError("nothing to record", mend="give --quality, --bench or both", code=Exit.USAGE)
    if quality is not None:
        done["quality"] = quality_of(read_json(quality), quality)
    if bench is not None:
        done["acceptance"] = acceptance_of(read_json(bench), bench)
    if done["quality"] is not None and done["acceptance"] is not None:
        done["note"] = "measured on the edited model"
    fsio.write_json(folder / store.RECEIPT, done)
    if format is Format.json:
        print_json(done)
    else:
        show_rows(done)

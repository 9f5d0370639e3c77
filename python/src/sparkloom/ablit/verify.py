"""Hold a fetched donor against the checkpoint, tensor by tensor, and write down what an edit would change."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.ablit import edit, rules, store
from sparkloom.ablit.rules import Problem, Table
from sparkloom.ablit.spec import Spec
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.checkpoint import Checkpoint
from sparkloom.exl3.headers import read_floats

REMEASURE = (
    "quality and draft acceptance of the edited model are unknown until they are measured again: "
    "`sparkloom quality compare` against the unedited model, `sparkloom bench decode`, then "
    "`sparkloom ablit record`"
)


def table(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor of a checkpoint."""
    return {
        name: (entry.dtype, entry.shape)
        for header in checkpoint.headers.values()
        for name, entry in header.tensors.items()
    }


def geometry(spec: Spec, ours: Table, donor: Table) -> list[Problem]:
    """Every reason, from types and shapes alone, why the edit cannot be made.

    Args:
        ours, donor: tensor -> type and shape; `donor` by the donor's names.
    """
    found = []
    for name, theirs in spec.tensors.items():
        problem = rules.target_problem(name, ours)
        if problem is None and theirs not in donor:
            problem = Problem(
                name, f"the donor has no tensor {theirs}", "correct ablit.donor_tensor or the layers"
            )
        if problem is None:
            problem = rules.donor_problem(spec, name, ours[name], donor[theirs])
        if problem is not None:
            found.append(problem)
    return found


def refuse(problems: list[Problem], file: object, what: str) -> None:
    """Raise one error that lists every problem, if there is any.

    Raises:
        SparkloomError: exit 3.
    """
    if problems:
        raise SparkloomError(
            f"{what}: {len(problems)} tensors do not fit, the first is {problems[0]}",
            file=file,
            field=problems[0].tensor,
            detail="\n".join(str(p) for p in problems[1:20]),
            mend=problems[0].mend,
            code=Exit.CHECK,
        )


def changes(
    spec: Spec, checkpoint: Checkpoint, manifest: store.Manifest, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Relative change of every tensor as the loader would make it, rounded to the stored type.

    Raises:
        SparkloomError: a file is cut short or changed, or a change is not believable.
    """
    where = {name: h for h in checkpoint.headers.values() for name in h.tensors}
    rows: list[dict[str, Any]] = []
    problems = []
    for piece in manifest.pieces:
        header = where[piece.tensor]
        entry = header.tensors[piece.tensor]
        before = read_floats(header, entry)
        given = store.floats(store.read(Path(spec.folder), piece), piece.dtype)
        after = apply(spec, piece.tensor, before, given)
        change = edit.relative_change(before, edit.rounded(after, entry.dtype))
        if (problem := rules.change_problem(spec, piece.tensor, change)) is not None:
            problems.append(problem)
        rows.append({"tensor": piece.tensor, "relative_change": round(change, 6)})
        progress(piece.tensor)
    refuse(problems, spec.folder, "the size of the change is not believable")
    return rows


def apply(spec: Spec, name: str, before: edit.Matrix, given: edit.Matrix) -> edit.Matrix:
    """The edited tensor in float32.

    Raises:
        SparkloomError: the donor's direction is none.
    """
    if spec.method == "transplant":
        return given
    try:
        return edit.project(before, given, spec.strength)
    except ValueError as error:
        raise SparkloomError(
            f"{name}: {error}", file=spec.folder, field=name, mend="use another donor", code=Exit.CHECK
        ) from None


def receipt(spec: Spec, manifest: store.Manifest, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What was verified. `quality` and `acceptance` stay null until somebody measured them."""
    shares = sorted(row["relative_change"] for row in rows)
    return {
        "schema": "sparkloom-ablit-1",
        "verified": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "method": spec.method,
        "strength": spec.strength if spec.method == "projection" else None,
        "donor": {"repo": manifest.repo, "revision": manifest.revision},
        "manifest_sha256": manifest.sha256,
        "tensors": rows,
        "relative_change": {
            "mean": round(sum(shares) / len(shares), 6),
            "least": shares[0],
            "most": shares[-1],
        },
        "quality": None,
        "acceptance": None,
        "note": REMEASURE,
    }


def identity(value: dict[str, Any]) -> tuple[Any, ...]:
    """What a measurement belongs to: with another edit it says nothing."""
    return value.get("method"), value.get("strength"), value.get("manifest_sha256")


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """The receipt of an earlier verification, or None."""
    try:
        value = json.loads((folder / store.RECEIPT).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def keep(folder: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Write a receipt; measurements of the very same edit are carried over, all others are dropped."""
    old = read_receipt(folder)
    if old is not None and identity(old) == identity(value):
        value |= {k: old.get(k) for k in ("quality", "acceptance")}
        if value["quality"] is not None and value["acceptance"] is not None:
            value["note"] = old.get("note", REMEASURE)
    fsio.write_json(folder / store.RECEIPT, value)
    return value


def quality_of(report: dict[str, Any], file: Path) -> dict[str, Any]:
    """The figures of a `quality compare --format json` with one model.

    Raises:
        SparkloomError: it is none, or compares several models.
    """
    models = report.get("models")
    if not isinstance(models, dict) or len(models) != 1:
        raise SparkloomError(
            "not a comparison of one model with its teacher",
            file=file, mend="save `sparkloom quality compare ... --format json` of the edited model alone",
        )  # fmt: skip
    (row,) = models.values()
    keys = ("windows", "positions", "kld_mean", "kld_low", "kld_high", "same_top")
    return {"seal": report.get("seal"), **{key: row.get(key) for key in keys}}


def acceptance_of(bench: dict[str, Any], file: Path) -> dict[str, Any]:
    """Median tokens a step of every decode workload in a bench receipt; {"drafter": false} without drafts.

    Raises:
        SparkloomError: not a receipt with decode runs.
    """
    decode = (bench.get("results") or {}).get("decode") if isinstance(bench.get("results"), dict) else None
    if not isinstance(decode, dict) or not decode:
        raise SparkloomError(
            "not a benchmark receipt with decode runs",
            file=file, mend="run `sparkloom bench decode` on the edited model and give its receipt.json",
        )  # fmt: skip
    out: dict[str, Any] = {}
    for name, case in decode.items():
        steps = sorted(r["acceptance"]["tokens_per_step"] for r in case["runs"] if "acceptance" in r)
        if steps:
            out[name] = steps[len(steps) // 2]
    return {"started": bench.get("started"), "tokens_per_step": out} if out else {"drafter": False}

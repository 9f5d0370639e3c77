"""Verify or look at one target, and say it as a row and findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.findings import Finding, fail, from_error, warn
from sparkloom.weights.checkpoint import check_checkpoint
from sparkloom.weights.hashing import RateLimit
from sparkloom.weights.manifest import MANIFEST_NAME, STATE_FOLDER, Manifest, save_manifest
from sparkloom.weights.places import Place, list_files
from sparkloom.weights.targets import Target
from sparkloom.weights.verify import Verdict, structure_findings, verdict_findings, verify


def verify_target(
    target: Target,
    manifest: Manifest | None,
    *,
    limit: RateLimit | None = None,
    jobs: int = 1,
    world: int = 1,
    quantization: str | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Hash what no receipt vouches for, then check the checkpoint's structure.

    Args:
        manifest: what is pinned; without one only the structure can be checked.
        world: ranks that the checkpoint is split over.
        quantization: `exl3` or `none` from the cluster file; `None` takes what config.json says.
        progress: called with path and bytes while hashing.
    """
    place = target.place()
    if not place.folder.is_dir():
        return status_target(target)
    findings: list[Finding] = []
    verdicts: list[Verdict] = []
    if manifest is None:
        mend = "`sparkloom weights verify --online` asks the hub, or give --manifest"
        findings.append(
            warn("weights.manifest", f"no manifest of the {target.name}: hashes are unknown", mend)
        )
    else:
        notes: list[str] = []
        verdicts = verify(place, manifest, limit=limit, jobs=jobs, progress=progress, note=notes.append)
        findings += verdict_findings(verdicts, place, f"weights.{target.name}")
        if place.cache is None and not (place.folder / MANIFEST_NAME).exists():
            try:
                save_manifest(place.folder / MANIFEST_NAME, manifest)
            except OSError as error:
                notes.append(f"the manifest cannot be written in {place.folder}: {error.strerror}")
        mend = "run it as the owner of the folder, or the next verification reads everything again"
        findings += [warn(f"weights.{target.name}", text, mend) for text in notes]
    findings += _structure(target, place, world, quantization)
    return _row(target, place, manifest, verdicts), findings


def _structure(target: Target, place: Place, world: int, quantization: str | None) -> list[Finding]:
    if target.name != "model" or not (place.folder / "config.json").exists():
        return structure_findings(place.folder, f"weights.{target.name}")
    if quantization is None:
        quantization = "exl3" if _declares_exl3(place) else "none"
    return check_checkpoint(place.folder, world=world, quantization=quantization)


def _declares_exl3(place: Place) -> bool:
    try:
        return '"exl3"' in (place.folder / "config.json").read_text("utf-8", "replace")
    except OSError:
        return False


def status_target(target: Target) -> tuple[dict[str, Any], list[Finding]]:
    """What metadata tells: nothing is hashed, no data is read."""
    place = target.place()
    check = f"weights.{target.name}"
    if not place.folder.is_dir():
        notes = "\n".join(place.notes)
        where = "snapshot is not in this cache" if place.cache else "folder is not there"
        mend = "`sparkloom weights fetch`"
        return _row(target, place, None, []), [
            fail(check, f"the pinned {where}: {place.folder}", mend, notes)
        ]
    try:
        manifest = target.known_manifest()
    except SparkloomError as error:
        return _row(target, place, None, []), [from_error(check, error)]
    findings = _unfinished(place, check)
    if manifest is None:
        mend = "`sparkloom weights verify --online` asks the hub, or give --manifest"
        findings.append(warn(check, "no manifest: nobody knows what these files should be", mend))
        return _row(target, place, None, []), findings
    verdicts = verify(place, manifest, hash_files=False)
    findings += verdict_findings(verdicts, place, check)
    return _row(target, place, manifest, verdicts), findings


def _unfinished(place: Place, check: str) -> list[Finding]:
    parts = place.folder / STATE_FOLDER / "parts"
    if not parts.is_dir():
        return []
    sizes = [path.stat().st_size for path in parts.iterdir()]
    if not sizes:
        return []
    text = f"{len(sizes)} files are unfinished, {sum(sizes) / 1e9:.2f} GB of them are here"
    return [warn(check, text, "`sparkloom weights fetch` goes on where it ended")]


def _row(target: Target, place: Place, manifest: Manifest | None, verdicts: list[Verdict]) -> dict[str, Any]:
    sizes = {entry.path: entry.size for entry in manifest.files} if manifest else {}
    present = [v for v in verdicts if v.status in ("ok", "receipt", "unhashed")]
    verified = [v for v in present if v.good]
    hashable = [e.path for e in manifest.files if e.hashed] if manifest else []
    return {
        "name": target.name,
        "repo": target.repo,
        "revision": target.revision,
        "path": str(place.folder),
        "files": len(sizes) if manifest else len(list_files(place.folder)) if place.folder.is_dir() else 0,
        "bytes": manifest.bytes if manifest else 0,
        "files_present": len(present),
        "bytes_present": sum(sizes.get(v.path, 0) for v in present),
        "files_verified": len(verified),
        "complete": bool(manifest)
        and len(present) == len(sizes)
        and {v.path for v in verified} >= set(hashable)
        and not any(v.status == "extra" and v.path.endswith(".safetensors") for v in verdicts),
        "verdicts": [{"path": v.path, "status": v.status, "note": v.note} for v in verdicts if not v.good],
    }

"""Check of a weight edit's files, if the cluster file asks for one; nothing is hashed here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sparkloom.ablit.spec import optional, pinned
from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown


def check_ablit(ctx: Context) -> list[Finding]:
    """The pinned donor's files are here and whole, and somebody has verified and measured the edit."""
    spec = optional(ctx.cluster)
    if spec is None:
        return []
    from sparkloom.ablit import store
    from sparkloom.ablit.verify import read_receipt

    folder = ctx.root.resolve(spec.folder)
    if not ctx.root.live and (folder is None or not folder.is_dir()):
        return [warn("ablit", unknown("ablit", "the weight edit", spec.folder, ctx.root))]
    manifest = store.load(pinned(replace(spec, folder=str(folder or spec.folder))))
    base = folder or spec.folder
    found = []
    for piece in manifest.pieces:
        path = ctx.root.resolve(f"{spec.folder}/{piece.file}")
        have = path.stat().st_size if path is not None and path.is_file() else 0
        if have != piece.bytes:
            text = f"{piece.tensor} has {have} of {piece.bytes} bytes in {spec.folder}"
            found.append(fail("ablit", text, store.MEND))
    if found:
        return found
    receipt = read_receipt(Path(base))
    if receipt is None or receipt.get("manifest_sha256") != manifest.sha256:
        return [warn("ablit", "the weight edit was never verified here", "sparkloom ablit verify CLUSTER")]
    if receipt["quality"] is None or receipt["acceptance"] is None:
        text = "quality and draft acceptance of the edited model were not measured"
        return [warn("ablit", text, "measure both, then sparkloom ablit record CLUSTER")]
    return [ok("ablit", f"{len(manifest.pieces)} tensors of the weight edit are here, verified and measured")]

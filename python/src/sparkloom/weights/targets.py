"""What a cluster file wants to have on disk: the checkpoint, and the drafter where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkloom.errors import SparkloomError
from sparkloom.weights.manifest import MANIFEST_NAME, Manifest, load_manifest
from sparkloom.weights.places import Place, find_place
from sparkloom.weights.verify import manifest_of_cache

if TYPE_CHECKING:
    from sparkloom.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Target:
    """One snapshot that a node needs."""

    name: str  # "model" or "drafter"
    repo: str
    revision: str
    path: Path
    manifest: Path | None = None
    fallback_repo: str | None = None

    def place(self) -> Place:
        """Where its files are."""
        return find_place(self.path, self.repo, self.revision)

    def known_manifest(self) -> Manifest | None:
        """The manifest that is at hand without a network: given, beside the files, or from cache links.

        Raises:
            SparkloomError: a manifest is there but wrong, or for another snapshot.
        """
        place = self.place()
        for path in (self.manifest, place.folder / MANIFEST_NAME):
            if path is not None and (path.exists() or path == self.manifest):
                manifest = load_manifest(path)
                # A byte mirror has another name and revision; the pinned one is what the cluster file says.
                if manifest.revision != self.revision:
                    raise SparkloomError(
                        f"this manifest is of revision {manifest.revision}, {self.revision} is pinned",
                        file=path, field="revision", value=manifest.revision,
                        mend="`sparkloom weights fetch` brings the folder to the pinned revision",
                    )  # fmt: skip
                return manifest
        return manifest_of_cache(place, self.repo, self.revision)


def targets_in(cluster: Cluster) -> list[Target]:
    """The snapshots that every node of a cluster needs."""
    from sparkloom.cluster import settings
    from sparkloom.cluster.model import DrafterKind

    model, drafter = cluster.model, cluster.drafter
    manifest = Path(model.manifest) if model.manifest else None
    found = [Target("model", model.repo, model.revision, Path(model.path), manifest, model.fallback_repo)]
    if settings(cluster).drafter is DrafterKind.dflash2:
        found.append(Target("drafter", drafter.repo, drafter.revision, Path(drafter.path)))
    return found


def cluster_targets(path: Path, which: str = "all") -> list[Target]:
    """The snapshots of a cluster file.

    Args:
        path: the cluster file.
        which: `all`, `model` or `drafter`.
    """
    from sparkloom.cluster import load

    chosen = [target for target in targets_in(load(path)) if which in ("all", target.name)]
    if not chosen:
        raise SparkloomError(
            f"this cluster has no {which}", file=path, field="drafter.kind",
            mend="only `dflash2` has weights of its own",
        )  # fmt: skip
    return chosen

"""What a cluster file asks for, as plain data: which tensors, by which method, within which bounds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sparkloom.cluster.ablit import Ablit, Method
from sparkloom.cluster.digest import canonical
from sparkloom.cluster.types import Cluster
from sparkloom.errors import Exit, SparkloomError

ENV = "SPARKLOOM_ABLIT"
"""Variable by which the plug-in learns of the edit; unset where there is none."""


@dataclass(frozen=True)
class Spec:
    """One edit.

    Args:
        method: `transplant` (the donor's tensor instead of ours) or `projection` (W - strength * r rᵀ W, r a
            unit vector over the output features).
        tensors: name in our checkpoint -> name in the donor.
        folder: where manifest and donor bytes are.
        manifest_sha256: pin of the manifest; None until it was fetched.
        strength: of a projection; 1 takes the direction out.
        least_change, most_change: bounds of |W' - W| / |W| of every tensor (Frobenius norms).
        model: folder of the checkpoint that is edited.
    """

    method: str
    tensors: dict[str, str]
    folder: str
    manifest_sha256: str | None
    strength: float
    least_change: float
    most_change: float
    model: str

    def as_env(self) -> str:
        """For the environment of a rank: the same text on all ranks."""
        return canonical(asdict(self)).decode()


def names(ablit: Ablit) -> dict[str, str]:
    """Our tensor -> the donor's, layer by layer."""
    donor = ablit.donor_tensor or ablit.tensor
    return {
        ablit.tensor.replace("{layer}", str(layer)): donor.replace("{layer}", str(layer))
        for layer in range(ablit.first_layer, ablit.last_layer + 1)
    }


def wanted(cluster: Cluster, file: object = None) -> Spec:
    """The edit that a cluster file asks for.

    Raises:
        SparkloomError: it asks for none (exit 4).
    """
    found = optional(cluster)
    if found is None:
        raise SparkloomError(
            "this cluster file asks for no weight edit",
            file=file,
            field="ablit.method",
            value="none",
            mend='give "ablit" a method, a donor and "accept_behaviour_change": true (docs/ablit.md)',
            code=Exit.INPUT,
        )
    return found


def optional(cluster: Cluster) -> Spec | None:
    """The edit that a cluster file asks for, or None."""
    ablit = cluster.ablit
    if ablit.method is Method.none:
        return None
    return Spec(
        ablit.method.value,
        names(ablit),
        ablit.path,
        ablit.manifest_sha256,
        ablit.strength,
        ablit.least_change,
        ablit.most_change,
        cluster.model.path,
    )


def pinned(spec: Spec) -> Spec:
    """The same, or an error where the donor's bytes are not pinned: two nodes could then hold different ones.

    Raises:
        SparkloomError: no `manifest_sha256`.
    """
    if spec.manifest_sha256 is None:
        raise SparkloomError(
            "the donor's bytes are not pinned: two nodes could hold different ones",
            field="ablit.manifest_sha256",
            value=None,
            mend="run `sparkloom ablit fetch CLUSTER` and write the hash that it prints into the file",
        )
    return spec


def from_env(environ: Mapping[str, str]) -> Spec | None:
    """The edit that a rank was told of, or None.

    Raises:
        SparkloomError: the variable holds something else.
    """
    text = environ.get(ENV)
    if not text:
        return None
    try:
        value: Any = json.loads(text)
        found = Spec(**{f.name: value[f.name] for f in fields(Spec)})
        if found.method not in ("transplant", "projection") or not found.tensors:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise SparkloomError(
            "not a weight edit",
            field=ENV,
            value=text[:80],
            mend="let `sparkloom render` write it, or unset it",
        ) from None
    return pinned(found)

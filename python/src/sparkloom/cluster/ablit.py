"""Weight edits at load. Off unless the file asks for one and accepts that the model behaves differently."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from sparkloom.cluster.base import AbsolutePath, Section
from sparkloom.cluster.model import Repo, Revision

TensorName = Annotated[str, Field(pattern=r"^[\w.]*[{]layer[}][\w.]*$", max_length=200)]
Layer = Annotated[int, Field(ge=0, le=999)]


class Method(StrEnum):
    """How weights are edited."""

    none = "none"
    transplant = "transplant"
    projection = "projection"


class Ablit(Section):
    """Weight edits at load (docs/ablit.md). They change what the model answers."""

    method: Method = Method.none
    """`none`, `transplant` (the donor's tensors instead of ours) or `projection` (a direction of the donor is
    taken out of our tensors)."""
    accept_behaviour_change: bool = False
    """Must be true for any method: the model answers differently, and neither quality nor acceptance measured
    without the edit holds any more."""
    donor_repo: Repo | None = None
    """Repository of the donor, OWNER/NAME. Only the tensors that are needed are fetched."""
    donor_revision: Revision | None = None
    """Commit of the donor, all 40 digits."""
    first_layer: Layer = 15
    """First layer that is edited."""
    last_layer: Layer = 45
    """Last layer that is edited, itself included."""
    tensor: TensorName = "model.language_model.layers.{layer}.self_attn.o_proj.weight"
    """Name of the edited tensor in the checkpoint. It must be native: EXL3 tensors cannot be edited."""
    donor_tensor: TensorName | None = None
    """Name in the donor: a matrix for `transplant`, a vector of output features for `projection`. null: the
    same name."""
    strength: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Of a projection: W - strength * r rᵀ W. 1 takes the direction out, more turns it round."""
    path: AbsolutePath = "/var/lib/sparkloom/ablit"
    """Folder of the donor's bytes and their manifest on every node."""
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the manifest, as `sparkloom ablit fetch` prints it. A rank starts only with exactly these
    bytes."""
    least_change: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Smallest relative change |W' - W| / |W| of a tensor that is believed."""
    most_change: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Largest relative change that is believed; two unrelated matrices of one size are 1.41 apart."""

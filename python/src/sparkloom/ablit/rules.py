"""What may be edited with what: types, shapes, EXL3, size of the change. Pure; a sentence a refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparkloom.ablit.spec import Spec

NATIVE = ("BF16", "F16", "F32")
"""Types that an edit can read and write."""

Shape = tuple[int, ...]
Table = Mapping[str, tuple[str, Shape]]
"""Tensor name -> type and shape."""


@dataclass(frozen=True)
class Problem:
    """Why one tensor cannot be edited."""

    tensor: str
    problem: str
    mend: str

    def __str__(self) -> str:
        return f"{self.tensor}: {self.problem}"


def target_problem(name: str, ours: Table) -> Problem | None:
    """Why a tensor of our checkpoint cannot be edited, or None."""
    stem = name.removesuffix(".weight")
    if f"{stem}.trellis" in ours:
        return Problem(
            name,
            "it is EXL3: a trellis holds codes, not numbers that could be changed one by one",
            "edit only native (bfloat16) layers, or encode the edited weights with `sparkloom exl3 quantize`",
        )
    if name not in ours:
        return Problem(
            name, "the checkpoint has no such tensor", "correct ablit.tensor, first_layer and last_layer"
        )
    dtype, shape = ours[name]
    if dtype not in NATIVE or len(shape) != 2:
        return Problem(
            name,
            f"{dtype} {list(shape)} cannot be edited: a matrix of {', '.join(NATIVE)} can",
            "choose native matrices in ablit.tensor",
        )
    return None


def donor_problem(spec: Spec, name: str, ours: tuple[str, Shape], donor: tuple[str, Shape]) -> Problem | None:
    """Why this tensor of the donor does not fit ours, or None."""
    (dtype, shape), (given, size) = ours, donor
    if spec.method == "projection":
        if given not in NATIVE or size != (shape[0],):
            want = f"a direction of {shape[0]} output features"
            return Problem(
                name,
                f"the donor has {given} {list(size)} where {want} is needed",
                "use a donor made for this model, or correct ablit.donor_tensor",
            )
        return None
    if size != shape:
        return Problem(
            name,
            f"the donor has the shape {list(size)}, ours is {list(shape)}",
            "use a donor of the same model, or correct ablit.donor_tensor",
        )
    if given != dtype:
        return Problem(
            name,
            f"the donor's tensor is {given}, ours is {dtype}",
            "use a donor whose tensors are stored as ours are; quantised ones cannot be transplanted",
        )
    return None


def change_problem(spec: Spec, name: str, change: float) -> Problem | None:
    """Why the size of a change is not believable, or None."""
    if not math.isfinite(change):
        return Problem(name, "the edited tensor is not finite", "fetch the donor again, or use another one")
    if change < spec.least_change:
        return Problem(
            name,
            f"the relative change {change:.2e} is below ablit.least_change {spec.least_change:g}: "
            "the donor holds what is there already, or the wrong tensor",
            "check donor and layers; lower least_change only if you know why",
        )
    if change > spec.most_change:
        return Problem(
            name,
            f"the relative change {change:.3g} is above ablit.most_change {spec.most_change:g}: "
            "this is another model's tensor, or too strong a projection",
            "check donor, layers and strength; raise most_change only if you know why",
        )
    return None

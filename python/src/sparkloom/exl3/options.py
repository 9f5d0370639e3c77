"""What the user of `quantize` chooses: rates, codebook, patterns of tensor names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.codebooks import check_codebook
from sparkloom.exl3.rates import check_bits

INCLUDE = ("*.experts.*",)
"""Default choice: routed experts, as in published checkpoints of GLM-5.3-Flash."""

BOOST = (
    "*layers.*.self_attn.[qkvo]_proj",
    "*layers.*.self_attn.q_a_proj",
    "*layers.*.self_attn.q_b_proj",
    "*layers.*.self_attn.kv_a_proj_with_mqa",
    "*layers.*.mlp.gate_proj",
    "*layers.*.mlp.up_proj",
    "*layers.*.mlp.down_proj",
    "*layers.*.mlp.shared_experts.*_proj",
    "lm_head",
)
"""The dense projections that a decode step of GLM-5.3-Flash reads most of. Left native: small ones (b, f, g),
the indexer and the router, which choose, and kv_b_proj, which vLLM decodes anyway."""
PRESETS: dict[str, tuple[str, ...]] = {"experts": INCLUDE, "boost": BOOST}
"""`--preset`: a name for patterns."""
FP8_SCALES = ("channel", "block")


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        bits, codebook: for every chosen matrix.
        include, exclude: patterns of tensor names, with or without `.weight`; * spans dots.
        rates: (pattern, bits) that override `bits`; the last match counts.
        seed: of the random signs.
        share_suh: give the two projections of `PAIRS` the same input scales.
        skip_odd: leave matrices native whose sizes are no multiples of 128, instead of refusing them.
        fp8: patterns of matrices to store as weight-only FP8 instead; they need not be included as well.
        fp8_scales: `channel` or `block`.

    Raises:
        SparkloomError: no such rate, codebook or kind of scales.
    """

    bits: int | float
    codebook: str = "mcg"
    include: tuple[str, ...] = INCLUDE
    exclude: tuple[str, ...] = ()
    rates: tuple[tuple[str, int | float], ...] = ()
    seed: int = 0
    share_suh: bool = True
    skip_odd: bool = False
    fp8: tuple[str, ...] = ()
    fp8_scales: str = "channel"

    def __post_init__(self) -> None:
        if self.fp8_scales not in FP8_SCALES:
            raise SparkloomError(
                "no such kind of FP8 scales",
                field="fp8_scales",
                value=self.fp8_scales,
                mend="use channel or block",
                code=Exit.USAGE,
            )
        try:
            check_codebook(self.codebook)
            for bits in (self.bits, *(rate for _, rate in self.rates)):
                check_bits(bits, self.codebook)
        except SparkloomError as error:
            error.code = Exit.USAGE
            raise

    def bits_of(self, name: str) -> int | float:
        """The rate of a matrix."""
        chosen = [rate for pattern, rate in self.rates if matches(name, (pattern,))]
        return check_bits(chosen[-1] if chosen else self.bits)

    def chooses(self, name: str) -> bool:
        """Whether a tensor is to be quantised at all."""
        return matches(name, (*self.include, *self.fp8)) and not matches(name, self.exclude)

    def is_fp8(self, name: str) -> bool:
        """Whether a chosen tensor becomes FP8."""
        return matches(name, self.fp8)

    def as_dict(self) -> dict[str, Any]:
        """For reports and digests. Without FP8 as before there was FP8, so that older work goes on."""
        found = asdict(self)
        if not self.fp8:
            del found["fp8"], found["fp8_scales"]
        return found


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a tensor's name, with or without `.weight`, fits a pattern."""
    bare = name.removesuffix(".weight")
    return any(fnmatchcase(name, p) or fnmatchcase(bare, p) for p in patterns)


def chosen_patterns(
    include: Iterable[str] | None, preset: str | None, fp8: Iterable[str] | None
) -> tuple[str, ...]:
    """What to quantise, from the command line: a preset and further patterns; with --fp8 alone, nothing else.

    Raises:
        SparkloomError: no such preset.
    """
    if preset is not None and preset not in PRESETS:
        raise SparkloomError(
            "no such preset",
            field="--preset",
            value=preset,
            mend="use one of: " + ", ".join(PRESETS),
            code=Exit.USAGE,
        )
    if preset or include:
        return (*(PRESETS[preset] if preset else ()), *(include or ()))
    return () if fp8 else INCLUDE


def parse_rates(texts: Iterable[str]) -> tuple[tuple[str, int | float], ...]:
    """`PATTERN=BITS` of the command line.

    Raises:
        SparkloomError: not of that form.
    """
    found: list[tuple[str, int | float]] = []
    for text in texts:
        pattern, _, bits = text.rpartition("=")
        try:
            found.append((pattern, float(bits)))
        except ValueError:
            pattern = ""
        if not pattern:
            raise SparkloomError(
                "a rate is given as PATTERN=BITS",
                field="--rate",
                value=text,
                mend="for example --rate '*.down_proj=5'",
                code=Exit.USAGE,
            )
    return tuple(found)

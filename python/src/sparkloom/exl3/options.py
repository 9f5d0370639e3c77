"""What the user of `quantize` chooses: rates, codebook, patterns of tensor names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.codebooks import check_codebook
from sparkloom.exl3.rates import check_bits

INCLUDE = ("*.experts.*",)
"""Default choice: routed experts, as in published checkpoints of GLM-5.3-Flash."""


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

    Raises:
        SparkloomError: no such rate or codebook.
    """

    bits: int | float
    codebook: str = "mcg"
    include: tuple[str, ...] = INCLUDE
    exclude: tuple[str, ...] = ()
    rates: tuple[tuple[str, int | float], ...] = ()
    seed: int = 0
    share_suh: bool = True
    skip_odd: bool = False

    def __post_init__(self) -> None:
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


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a tensor's name, with or without `.weight`, fits a pattern."""
    bare = name.removesuffix(".weight")
    return any(fnmatchcase(name, p) or fnmatchcase(bare, p) for p in patterns)


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

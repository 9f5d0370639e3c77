"""Compare version strings of kernels, drivers, firmware and libraries."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

Version = tuple[int, ...]
_COMPARE: dict[str, Callable[[Version, Version], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CLAUSE = re.compile(r"\s*(==|!=|>=|<=|>|<)\s*(\d[\w.+-]*)\s*")


def parse_version(text: str) -> Version | None:
    """The leading numbers of a version: `6.17.0-1014-nvidia` is (6, 17, 0, 1014); `None` without any.

    At most six numbers of at most nine digits count; a suffix like `rc1` ends the version.
    """
    match = re.match(r"\s*v?(\d{1,9}(?:[.-]\d{1,9}){0,5})", text)
    return tuple(int(part) for part in re.split(r"[.-]", match[1])) if match else None


def nccl_version(text: str) -> Version | None:
    """An NCCL version from `2.29.3`, `2.29.3+cuda13.0`, `NCCL version 2.29.3` or its code `22903`."""
    match = re.search(r"\d{1,9}(?:\.\d{1,9}){1,3}", text)
    if match:
        return parse_version(match[0])
    code = re.fullmatch(r"\D*(\d{4,6})\D*", text)
    if not code:
        return None
    number = int(code[1])  # major * 10000 + minor * 100 + patch since 2.9, before that * 1000
    if number >= 10000:
        return number // 10000, number // 100 % 100, number % 100
    return number // 1000, number // 100 % 10, number % 100


def compare(left: Version, sign: str, right: Version) -> bool:
    """Compare two versions; the shorter one is filled with zeros."""
    width = max(len(left), len(right))
    return _COMPARE[sign](left + (0,) * (width - len(left)), right + (0,) * (width - len(right)))


def matches(version: Version, rule: str) -> bool:
    """Whether a version satisfies every clause of `>=6.17,<7.0`.

    Raises:
        ValueError: `rule` is not of that form.
    """
    for clause in rule.split(","):
        parts = _CLAUSE.fullmatch(clause)
        wanted = parse_version(parts[2]) if parts else None
        if parts is None or wanted is None:
            raise ValueError(f"not a version rule: {rule!r}")
        if not compare(version, parts[1], wanted):
            return False
    return True


def dotted(version: Version) -> str:
    """The version as text."""
    return ".".join(map(str, version))

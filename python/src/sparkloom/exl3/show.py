"""An inspection as text: linears that differ in numbers alone share a line."""

from __future__ import annotations

import re
from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparkloom.exl3.inspect import Inspection
from sparkloom.findings import print_text

SHOWN = 20
"""Problems that are shown before the rest is only counted."""


def size(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    raise AssertionError


def family(name: str) -> str:
    """The name with its numbers replaced: layers.3.experts.17.up_proj -> layers.*.experts.*.up_proj."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def print_inspection(result: Inspection, *, every: bool = False) -> None:
    """Print what was found; `every` linear on its own line, or by families."""
    console = Console(highlight=False)
    rows: Counter[tuple[str, str, str, str, str]] = Counter()
    weight: Counter[tuple[str, str, str, str, str]] = Counter()
    for m in result.modules:
        extra = " ".join(word for word, there in (("bias", m.bias), ("old signs", m.old_signs)) if there)
        row = (
            m.name if every else family(m.name),
            f"{m.bits:g}" if m.bits else "?",
            m.codebook or "?",
            f"{m.k} x {m.n}",
            extra,
        )
        rows[row] += 1
        weight[row] += m.nbytes
    if rows:
        table = Table("EXL3 linear", "bits", "codebook", "k x n", "", "count", "size", title_justify="left")
        for row, count in rows.items():
            table.add_row(*map(escape, row), str(count), size(weight[row]))
        console.print(table)
    natives: Counter[str] = Counter()
    for entry in result.native:
        natives[entry.dtype] += entry.nbytes
    s = result.summary()
    console.print(
        f"{escape(str(result.path))}: {len(result.files)} files, {s['modules']} EXL3 linears"
        + (
            f" at {s['bits_per_weight']:g} bits per weight ({s['bits_per_weight_with_scales']:g} with scales)"
            if s["modules"]
            else ""
        )
        + f", {size(s['exl3_bytes'])}; {s['native_tensors']} native tensors, {size(s['native_bytes'])}"
        + (f" ({', '.join(f'{d} {size(b)}' for d, b in natives.items())})" if natives else "")
    )
    if result.findings:
        print_text(result.findings[:SHOWN], title="problems")
        if len(result.findings) > SHOWN:
            console.print(f"and {len(result.findings) - SHOWN} more (--format json lists all)")
    else:
        console.print("no problems found")

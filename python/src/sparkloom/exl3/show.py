"""Results as text: linears that differ in numbers alone share a line."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from sparkloom.exl3.inspect import Inspection
from sparkloom.exl3.options import Options
from sparkloom.exl3.plan import Plan
from sparkloom.exl3.quantize import Progress as WorkProgress
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


def _table(name: str, *others: str) -> Table:
    """A table whose first column breaks names in two rather than cutting them off."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(name, overflow="fold")
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table


def family(name: str) -> str:
    """The name with its numbers replaced: layers.3.experts.17.up_proj -> layers.*.experts.*.up_proj."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def print_inspection(result: Inspection, *, every: bool = False) -> None:
    """Print what was found; `every` linear on its own line, or by families."""
    console = Console(highlight=False, soft_wrap=True)
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
        table = _table("EXL3 linear", "bits", "codebook", "k x n", "", "count", "size")
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


def print_plan(plan: Plan, options: Options) -> None:
    """What would be encoded, by families."""
    console = Console(highlight=False, soft_wrap=True)
    rows: Counter[tuple[str, str, str]] = Counter()
    for t in plan.targets:
        rows[(family(t.key), "fp8" if t.fp8 else f"{t.bits:g}", f"{t.k} x {t.n}")] += 1
    table = _table("to encode", "bits", "k x n", "count")
    for row, count in rows.items():
        table.add_row(*map(escape, row), str(count))
    console.print(table)
    after = sum(shard.nbytes for shard in plan.shards)
    tiles = sum(shard.tiles for shard in plan.shards)
    console.print(f"{len(plan.shards)} files, {size(after)}; {tiles} tiles, codebook {options.codebook}")
    _print_skipped(console, plan.skipped)


def _print_skipped(console: Console, skipped: Mapping[str, str]) -> None:
    rows = Counter((family(name), why) for name, why in skipped.items())
    for (name, why), count in rows.items():
        console.print(escape(f"stays native: {name} ({count}): {why}"))


def print_report(report: Mapping[str, Any]) -> None:
    """The outcome of `quantize`: sums, and the linears with the largest error."""
    console = Console(highlight=False, soft_wrap=True)
    s = report["summary"]
    worst = sorted(report["linears"], key=lambda n: -n["nmse"])[:5]
    table = _table("largest errors", "bits", "k x n", "NMSE")
    for n in worst:
        table.add_row(escape(n["name"]), f"{n['bits']:g}", f"{n['k']} x {n['n']}", f"{n['nmse']:.3g}")
    console.print(table)
    console.print(
        f"{s['linears']} linears at {s['bits_per_weight']:g} bits per weight, mean NMSE {s['nmse_mean']:.3g};"
        f" {size(s['nbytes_before'])} -> {size(s['nbytes_after'])}"
    )
    _print_skipped(console, report["skipped"])
    console.print(escape(f"written: {report['target']} (errors of all: quantize-report.json)"))


@contextmanager
def progress_bar() -> Iterator[Callable[[WorkProgress], None]]:
    """A bar on standard error: tiles, rate, time left, and the linear at work."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed}/{task.total} tiles"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("reading", total=None, rate="")
        first: list[tuple[float, int]] = []

        def listen(now: WorkProgress) -> None:
            first[:] = first or [(time.monotonic(), now.done)]
            seconds, tiles = time.monotonic() - first[0][0], now.done - first[0][1]
            bar.update(
                task,
                description=escape(now.name or now.shard),
                completed=now.done,
                total=now.total,
                rate=f"{tiles / seconds:.0f}/s" if seconds > 1 else "",
            )

        yield listen

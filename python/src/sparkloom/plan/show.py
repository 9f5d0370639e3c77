"""The plan for people: a table per node, a bar of the sum, the KV facts and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkloom.findings import Level
from sparkloom.plan.planner import NodePlan, Plan

GIB = 1 << 30
COLOURS = ("blue", "cyan", "green", "magenta", "yellow", "bright_blue", "bright_cyan", "bright_green")
PATTERNS = "█▓▒░"


def gib(value: int) -> str:
    """Bytes as GiB with two digits."""
    return f"{value / GIB:.2f}"


def bar(plan: NodePlan, width: int, full: int) -> Text:
    """The items side by side in proportion, then what is free, or how far they stand over the edge.

    Every item of at least half a cell gets one; patterns tell neighbours apart without colour.

    Args:
        plan: the node.
        width: cells of the longest bar.
        full: bytes that `width` cells stand for, the same for all nodes.
    """
    scale = max(full, 1) / max(1, width)
    text, done, drawn = Text(), 0, 0
    edge = round(plan.free.free_bytes / scale)
    for i, item in enumerate(sorted(plan.items, key=lambda item: -item.bytes)):
        done += item.bytes
        until = round(done / scale)
        mark = PATTERNS[i % len(PATTERNS)]
        inside = max(0, min(until, edge) - drawn)
        text.append(mark * inside, COLOURS[i % len(COLOURS)])
        text.append("!" * (until - drawn - inside), "bold red")
        drawn = max(drawn, until)
    text.append("·" * max(0, edge - drawn), "dim")
    return text


def legend(plan: NodePlan) -> Text:
    """What the bar's patterns mean, largest first."""
    text = Text()
    for i, item in enumerate(sorted(plan.items, key=lambda item: -item.bytes)):
        text.append(PATTERNS[i % len(PATTERNS)], COLOURS[i % len(COLOURS)])
        text.append(f" {item.what}  ")
    return text


def table(plan: Plan) -> Table:
    """All items of all nodes in GiB."""
    grid = Table(box=None, pad_edge=False)
    grid.add_column("GiB")
    for node in plan.nodes:
        grid.add_column(node.name, justify="right")
    grid.add_column("source", style="dim")
    rows: dict[str, tuple[dict[str, int], str]] = {}
    for node in plan.nodes:
        for item in node.items:
            rows.setdefault(item.what, ({}, item.source))[0][node.name] = item.bytes
    for what, (sizes, source) in rows.items():
        cells = [gib(sizes[node.name]) if node.name in sizes else "-" for node in plan.nodes]
        grid.add_row(what, *cells, source)
    grid.add_row("need", *(gib(node.need_bytes) for node in plan.nodes), "", style="bold")
    grid.add_row("free", *(gib(node.free.free_bytes) for node in plan.nodes), "after dropping page cache")
    spare = [
        Text(f"{node.spare_bytes / GIB:+.2f}", "green" if node.fits else "bold red") for node in plan.nodes
    ]
    grid.add_row("spare", *spare, f"{plan.binding.name} binds")
    return grid


def kv_lines(plan: Plan) -> list[str]:
    """What the KV pool means, in words."""
    kv = plan.kv()
    if plan.layout is None:
        return [f"KV pool {gib(plan.pool_bytes)} GiB per rank"]
    dropped = f"{kv['largest_pool_bytes'] / GIB:.2f}"
    return [
        f"KV pool   {gib(plan.pool_bytes)} GiB per rank = {kv['pool_blocks']} blocks of "
        f"{kv['stride_bytes'] / 1e6:.1f} MB; at most {dropped} GiB would fit",
        f"block     {kv['block_tokens']} tokens, also the grain of prefix hits; "
        f"{kv['bytes_per_token']} bytes a token in use, {kv['pool_bytes_per_token']} taken",
        f"running   {plan.sequences} requests reserve {kv['reserved_blocks']} blocks "
        f"({kv['state_blocks_per_request']} state, {kv['draft_blocks_per_request']} drafter, "
        f"{kv['tail_blocks_per_request']} tail each); "
        f"{kv['context_blocks']} are left for context",
        f"cached    {kv['cached_conversation_tokens']} tokens of conversation when idle, "
        f"{kv['cached_conversation_tokens_while_busy']} while {plan.sequences} requests run "
        f"({kv['blocks_per_cached_segment']} blocks per kept checkpoint)",
        "          (the engine's line 'GPU KV cache size' is concurrency x context and says neither)",
        f"context   {plan.context} tokens asked, {plan.largest_context} would fit",
    ]


def show(plan: Plan, console: Console | None = None) -> None:
    """Print the plan."""
    console = console or Console(highlight=False, soft_wrap=True)
    width = max(20, min(console.width, 100) - max(len(node.name) for node in plan.nodes) - 12)
    console.print(table(plan))
    console.print()
    full = max(max(node.free.free_bytes, node.need_bytes) for node in plan.nodes)
    for node in plan.nodes:
        label = f"{node.name:<{max(len(n.name) for n in plan.nodes)}} "
        console.print(Text.assemble(label, bar(node, width, full), f" {gib(node.free.free_bytes)}"))
    console.print(legend(plan.binding))
    console.print()
    for line in kv_lines(plan):
        console.print(line, markup=False)
    for finding in plan.findings:
        if finding.level is not Level.ok:
            console.print(f"{finding.level}: {finding.summary}; {finding.mend}", style="yellow", markup=False)
    for step in plan.steps:
        console.print(f"before the start: {step}", markup=False)
    verdict = "bold green" if plan.fits else "bold red"
    console.print(Text(refusal(plan) if not plan.fits else "fits", verdict))
    for mend in plan.mends:
        console.print(f"mend: {mend}", markup=False)


def refusal(plan: Plan) -> str:
    """Why it does not fit, with the sums of every node."""
    sums = "; ".join(
        f"{node.name} needs {gib(node.need_bytes)} GiB of {gib(node.free.free_bytes)} GiB free"
        for node in plan.nodes
    )
    return f"does not fit: {sums}; short by {gib(-plan.binding.spare_bytes)} GiB on {plan.binding.name}"

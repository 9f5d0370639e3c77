"""The memory plan of this node, from its own live numbers."""

from __future__ import annotations

from sparkloom.findings import Finding, fail, ok, warn
from sparkloom.preflight.context import Context, unknown
from sparkloom.preflight.processes import read_processes, top_table
from sparkloom.preflight.system import size


def check_memory(ctx: Context) -> Finding:
    """The plan fits on this node; a refusal shows both sums, the largest processes and what would fit."""
    from sparkloom.plan import plan
    from sparkloom.plan.free import assumed, from_meminfo

    info = ctx.meminfo()
    if info is None:
        return warn("memory", unknown("memory", "free memory", "/proc/meminfo", ctx.root))
    reserve = ctx.root.integer("proc/sys/vm/min_free_kbytes")
    here = from_meminfo(
        info,
        source=str(ctx.root.path / "proc/meminfo"),
        drop_page_cache=ctx.cluster.memory.drop_page_cache,
        min_free=None if reserve is None else reserve * 1024,
    )
    # The other nodes answer for themselves: here they get what this one has.
    total = max(ctx.cluster.memory.total_bytes, here.total)
    free = {node.name: assumed(total) for node in ctx.cluster.nodes} | {ctx.node.name: here}
    decided = plan(ctx.cluster, free)
    mine = next(node for node in decided.nodes if node.name == ctx.node.name)
    sums = f"{size(mine.need_bytes)} are needed, {size(mine.free.free_bytes)} are free"
    table = "\n".join(f"{size(item.bytes):>10}  {item.what} ({item.source})" for item in mine.items)
    if mine.fits:
        return ok("memory", f"the plan fits: {sums}", table)
    processes = read_processes(ctx.root)
    if processes:
        table += "\nlargest processes:\n" + top_table(processes)
    what = [node.name for node in decided.nodes if not node.fits]
    mends = [text for text in decided.mends if what == [ctx.node.name]] or list(decided.mends)
    mend = "free memory on this node, or " + "; or ".join(mends) if mends else "free memory on this node"
    return fail("memory", f"the plan does not fit: {sums}", mend, table)

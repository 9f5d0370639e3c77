"""`sparkloom agent CLUSTER --node NAME`: the process that the service manager runs on every node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkloom.cli.options import new_app

if TYPE_CHECKING:
    from sparkloom.cluster import Cluster

app = new_app("Own this node's rank; keep the pair as one. Runs until SIGTERM.")


@app.command()
def agent(
    cluster: Annotated[Path, typer.Argument(help="Cluster file, the same on every node.")],
    node: Annotated[str, typer.Option("--node", help="Name of this node in the cluster file.")],
    root: Annotated[Path, typer.Option("--root", help="Where /proc and /sys are read.")] = Path("/"),
) -> None:
    """Run the agent in the foreground."""
    import asyncio

    from sparkloom.agent.daemon import Agent
    from sparkloom.sysroot import SysRoot

    async def serve() -> None:
        await Agent(cluster.absolute(), node, root=SysRoot(root), blockers=_preflight(node, root)).run()

    asyncio.run(serve())


def _preflight(node: str, root: Path) -> Callable[[Cluster, bool], list[str]]:
    """The failing findings of the preflight, which hold the gate. A machine without a GPU has none."""
    from sparkloom.findings import Level
    from sparkloom.preflight import context, run_checks
    from sparkloom.sysroot import SysRoot

    def blockers(cluster: Cluster, running: bool) -> list[str]:
        if cluster.engine.platform != "cuda":
            return []
        # What our own rank holds is no reason against its restart.
        skip = ("ports", "gpu.users", "consumers", "page_cache", "memory") if running else ()
        found = run_checks(context(cluster, node, SysRoot(root)), skip=skip)
        return [f"{f.check}: {f.summary}" for f in found if f.level is Level.fail]

    return blockers

"""The agent as the chaos world starts it: the product's own, with one node's paths laid over the file.

On two machines both agents use the same paths; on one machine they may not. Socket, state folder and key come
from the node's folder; everything else, the digest included, is the file's.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from sparkloom.agent.daemon import Agent
from sparkloom.agent.settings import Settings
from sparkloom.errors import SparkloomError
from sparkloom.sysroot import SysRoot


async def serve(folder: Path, node: str, root: Path) -> None:
    """Serve until SIGTERM."""

    def adjust(settings: Settings) -> Settings:
        return replace(settings, socket=folder / "agent.sock", state=folder / "state")

    agent = Agent(
        folder / "cluster.json", node, root=SysRoot(root), adjust=adjust, key_file=folder / "agent.key"
    )
    await agent.run()


def main(folder: Path, node: str, root: Path) -> int:
    """Run the agent of `node` with the files in `folder`."""
    try:
        asyncio.run(serve(folder, node, root))
    except SparkloomError as error:
        print(error, flush=True)
        return int(error.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))

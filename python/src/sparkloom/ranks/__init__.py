"""Two nodes on one machine: real ranks, separate networks, and no orphans.

    with Pair() as pair:                                  # namespaces where root, loopback otherwise
        head = pair.start("head", 0, argv, log=folder / "head.log")
        worker = pair.start("worker", 1, argv, log=folder / "worker.log")
        pair.forward(0, port=8888, listen=8888)           # 127.0.0.1:8888 of this machine
        pair.check()                                      # raises when a rank has ended

The demo and the chaos tests stand on this.
"""

from sparkloom.ranks.forward import Forward, listener
from sparkloom.ranks.nodes import Mode, Node, why_no_namespaces
from sparkloom.ranks.pair import Pair
from sparkloom.ranks.rank import Deadlines, End, Rank
from sparkloom.ranks.runs import clear_stale

__all__ = [
    "Deadlines",
    "End",
    "Forward",
    "Mode",
    "Node",
    "Pair",
    "Rank",
    "clear_stale",
    "listener",
    "why_no_namespaces",
]

"""The memory plan: bytes of every item on every node, what binds, and what would fit.

`plan(cluster, free)` decides; `free.read`, `free.live` and `free.assumed` say what a node has;
`kv.layout` models the KV pool. Nothing here starts a process.
"""

from sparkloom.plan.free import Free
from sparkloom.plan.kv import Layout, layout
from sparkloom.plan.needs import Item, kv_bytes, layout_for, needs
from sparkloom.plan.planner import NodePlan, Plan, plan

__all__ = ["Free", "Item", "Layout", "NodePlan", "Plan", "kv_bytes", "layout", "layout_for", "needs", "plan"]

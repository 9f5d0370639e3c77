"""Preflight: everything that can be known about a node before a rank starts.

Each check is a function from a `Context` (cluster file, node, tree) to findings; `run_checks` runs them all.
"""

from sparkloom.preflight.context import Context, context
from sparkloom.preflight.run import CHECKS, run_checks

__all__ = ["CHECKS", "Context", "context", "run_checks"]

"""Break a pair on this machine in scripted ways and measure how it comes back."""

from sparkloom.testing.chaos.cases import CASES, Case
from sparkloom.testing.chaos.run import Outcome, run_cases, table
from sparkloom.testing.chaos.world import World, WorldOptions

__all__ = ["CASES", "Case", "Outcome", "World", "WorldOptions", "run_cases", "table"]

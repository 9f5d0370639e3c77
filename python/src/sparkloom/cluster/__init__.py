"""The cluster file: the one truth that both ranks, the units and every check derive from.

`load` reads and checks it, `settings` gives final values with their origin, `digest` identifies it,
`render` (in `sparkloom.cluster.render`) writes argv and environment of one rank.
"""

from sparkloom.cluster.digest import digest
from sparkloom.cluster.load import ClusterError, load, loads, parse
from sparkloom.cluster.settings import Origin, Settings, Sourced, settings, sourced
from sparkloom.cluster.types import Cluster

__all__ = [
    "Cluster",
    "ClusterError",
    "Origin",
    "Settings",
    "Sourced",
    "digest",
    "load",
    "loads",
    "parse",
    "settings",
    "sourced",
]

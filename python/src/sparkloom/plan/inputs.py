"""Free memory of every node, from files, from this machine, or assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkloom.cluster.types import Cluster
from sparkloom.errors import Exit, SparkloomError
from sparkloom.plan import free
from sparkloom.plan.free import Free


def named_files(values: Sequence[str], option: str, cluster: Cluster) -> dict[str, Path]:
    """`NODE=FILE` options as a map from node name. A role names a node where only one has it.

    Errors: USAGE for a value without `=`, an unknown or a repeated node.
    """
    found: dict[str, Path] = {}
    names = [node.name for node in cluster.ranks]
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or not path:
            raise SparkloomError(
                f"{option} needs NODE=FILE", value=value, mend=f"{option} {names[0]}=FILE", code=Exit.USAGE
            )
        if (node := cluster.find(name)) is not None:
            name = node.name
        if name not in names or name in found:
            problem = "given twice" if name in found else "not a node of the cluster file"
            raise SparkloomError(
                f"{option}: {name!r} is {problem}",
                value=value,
                mend=f"use each of {', '.join(names)} once",
                code=Exit.USAGE,
            )
        found[name] = Path(path)
    return found


def gather(
    cluster: Cluster,
    meminfo: Mapping[str, Path],
    *,
    node: str | None = None,
    root: Path = Path("/"),
    min_free_kbytes: Mapping[str, int] | None = None,
) -> dict[str, Free]:
    """Free memory by node name: a given file, else this machine for `node`, else an assumption."""
    drop = cluster.memory.drop_page_cache
    found: dict[str, Free] = {}
    for each in cluster.ranks:
        if each.name in meminfo:
            found[each.name] = free.read(meminfo[each.name], drop_page_cache=drop)
        elif each.name == node:
            found[each.name] = free.live(root, drop_page_cache=drop)
        else:
            found[each.name] = free.assumed(cluster.memory.total_bytes)
    for name, kbytes in (min_free_kbytes or {}).items():
        old = found[name]
        found[name] = Free(old.total, old.free_bytes, old.cuda_free, kbytes * 1024, old.source)
    return found

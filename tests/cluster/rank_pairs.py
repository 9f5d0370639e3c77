"""A pair of rendered ranks, and how they may differ."""

from __future__ import annotations

from typing import Any

from sparkloom.cluster import parse
from sparkloom.cluster.render import PER_NODE_ENV, PER_NODE_FLAGS, Rendered, render
from sparkloom.fabric import Rail

PAIR: dict[str, Any] = {
    "nodes": [
        {"name": "head", "role": "head", "fabric": {"addresses": ["192.168.100.1", "192.168.101.1"]}},
        {"name": "worker", "role": "worker", "fabric": {"addresses": ["192.168.100.2", "192.168.101.2"]}},
    ]
}
DFLASH = {"kind": "dflash2", "accept_non_commercial_licence": True}


def rail(address: str, rdma: str, netdev: str, index: int | None) -> Rail:
    return Rail(netdev, rdma, address, index, "gid", "RoCE v2", 9000, 4096, True, "200 Gb/sec")


HEAD_RAILS = [
    rail("192.168.100.1", "rocep1s0f0", "enp1s0f0np0", 3),
    rail("192.168.101.1", "roceP2p1s0f0", "enP2p1s0f0np0", 3),
]
WORKER_RAILS = [
    rail("192.168.100.2", "rocep1s0f1", "enp1s0f1np1", 5),
    rail("192.168.101.2", "roceP2p1s0f1", "enP2p1s0f1np1", 5),
]


def flag(rendered: Rendered, name: str) -> str | None:
    """Value of a flag, "" when it has none, None when it is absent."""
    if name not in rendered.argv:
        return None
    i = rendered.argv.index(name) + 1
    value = rendered.argv[i] if i < len(rendered.argv) else "--"
    return "" if value.startswith("--") else value


def both(document: dict[str, Any], **keywords: Any) -> tuple[Rendered, Rendered]:
    cluster = parse(document)
    return render(cluster, "head", **keywords), render(cluster, "worker", **keywords)


def differences(head: Rendered, worker: Rendered) -> set[str]:
    """Names of flags and variables that differ."""

    def flags(argv: tuple[str, ...]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        name = "program"
        for word in argv:
            if word.startswith("--"):
                name = word
            found.setdefault(name, []).append(word)
        return found

    a, b = flags(head.argv), flags(worker.argv)
    names = {name for name in a | b if a.get(name) != b.get(name)}
    return names | {name for name in head.env | worker.env if head.env.get(name) != worker.env.get(name)}


def check_parity(head: Rendered, worker: Rendered) -> None:
    assert differences(head, worker) <= PER_NODE_FLAGS | PER_NODE_ENV
    assert head.digest == worker.digest
    assert list(head.argv).index("--tensor-parallel-size")
    assert "--headless" in worker.argv
    assert "--headless" not in head.argv
    assert "--port" not in worker.argv
    assert not worker.secret_files

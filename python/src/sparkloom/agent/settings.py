"""One node's settings of the agent, taken from the cluster file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sparkloom.agent.auth import read_key
from sparkloom.cluster import Cluster
from sparkloom.errors import Exit, SparkloomError
from sparkloom.pair import Limits


@dataclass(frozen=True)
class PeerAddress:
    """Where a node's agent listens."""

    name: str
    address: str
    port: int

    @property
    def url(self) -> str:
        """Base address of its channel."""
        return f"http://{self.address}:{self.port}"


@dataclass(frozen=True)
class Settings:
    """Everything that the agent of one node needs to know; `nodes[0]` is the head."""

    cluster: str
    node: str
    is_head: bool
    nodes: tuple[PeerAddress, ...]
    limits: Limits
    scrape_s: float
    status_port: int
    socket: Path
    state: Path
    keep: int
    api_url: str
    served_name: str
    checks: str
    probe_words: int
    require_rdma: bool
    drop_cache: bool
    memory_tolerance: int

    @property
    def me(self) -> PeerAddress:
        """This node's own address."""
        return next(n for n in self.nodes if n.name == self.node)

    @property
    def head(self) -> PeerAddress:
        """The head's address."""
        return self.nodes[0]


def settings_of(cluster: Cluster, node: str) -> Settings:
    """Settings of `node`.

    Raises:
        SparkloomError: no such node; deadlines that do not fit together.
    """
    ranks = list(cluster.ranks)
    names = [n.name for n in ranks]
    if node not in names:
        raise SparkloomError(
            "no such node in the cluster file",
            field="--node",
            value=node,
            mend="use one of " + ", ".join(names),
            code=Exit.USAGE,
        )
    agent, probe = cluster.agent, cluster.probe
    host = "127.0.0.1" if cluster.api.host == "0.0.0.0" else cluster.api.host
    me = ranks[names.index(node)]
    return Settings(
        cluster=cluster.name,
        node=node,
        is_head=me.role == "head",
        nodes=tuple(
            PeerAddress(n.name, str(n.fabric.addresses[0]), n.agent_port or agent.port) for n in ranks
        ),
        limits=limits_of(cluster),
        scrape_s=cluster.liveness.scrape_seconds,
        status_port=me.status_port or agent.status_port,
        socket=Path(agent.socket),
        state=Path(agent.state_directory),
        keep=agent.keep_generations,
        api_url=f"http://{host}:{cluster.api.port}",
        served_name=cluster.model.served_name,
        checks=str(probe.checks),
        probe_words=max(16, probe.long_prompt_tokens * 3 // 4),
        require_rdma=cluster.fabric.require_rdma and cluster.engine.platform == "cuda",
        drop_cache=cluster.memory.drop_page_cache and cluster.engine.platform == "cuda",
        memory_tolerance=cluster.memory.return_tolerance_bytes,
    )


def limits_of(cluster: Cluster) -> Limits:
    """The machine's deadlines from the sections agent, deadlines, restart, liveness and probe."""
    deadlines, restart, live = cluster.deadlines, cluster.restart, cluster.liveness
    return Limits(
        beat_s=cluster.agent.heartbeat_seconds,
        lease_s=cluster.agent.lease_seconds,
        gate_s=deadlines.gate_seconds,
        drain_s=deadlines.drain_seconds,
        stable_s=restart.stable_seconds,
        launch_s=max(30.0, deadlines.rendezvous_seconds / 2),
        rendezvous_s=deadlines.rendezvous_seconds,
        weights_s=deadlines.load_seconds,
        kv_s=deadlines.kv_seconds,
        graphs_s=deadlines.graphs_seconds,
        warm_s=max(deadlines.warmup_seconds, cluster.probe.deadline_seconds),
        grace_s=deadlines.stop_seconds * 0.6,
        stop_s=deadlines.stop_seconds * 1.5 + 10.0,
        memory_s=deadlines.memory_return_seconds,
        wait_first_s=restart.backoff_first_seconds,
        wait_factor=restart.backoff_factor,
        wait_max_s=restart.backoff_max_seconds,
        start_limit=restart.start_limit,
        start_window_s=restart.interval_seconds,
        stall_s=live.progress_seconds,
        idle_s=live.idle_probe_seconds,
        check_s=10 * live.idle_probe_seconds,
        canary_s=live.answer_seconds,
        canary_failures=live.failures,
    )


def credential(name: str, fallback: str | None) -> Path | None:
    """The credential file that the service manager gave us, else the path of the cluster file."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder and (Path(folder) / name).exists():
        return Path(folder) / name
    return Path(fallback) if fallback else None


def channel_key(cluster: Cluster) -> bytes:
    """The agents' shared secret."""
    path = credential("agent.key", str(cluster.agent.key_file))
    assert path is not None
    return read_key(path)


def api_key(cluster: Cluster) -> str | None:
    """The API key (first line of its file), or None when none is in use.

    Raises:
        SparkloomError: the file is named but cannot be read or is empty.
    """
    path = credential("api.key", cluster.api.key_file)
    if path is None:
        return None
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SparkloomError(
            f"cannot read the API key: {why}",
            file=path,
            field="api.key_file",
            mend="write the key in line 1 and let the service's user read it",
            code=Exit.RESOURCE,
        ) from error
    if not lines or not lines[0].strip():
        raise SparkloomError(
            "the file of the API key is empty",
            file=path,
            field="api.key_file",
            mend="write the key in line 1",
        )
    return lines[0].strip()

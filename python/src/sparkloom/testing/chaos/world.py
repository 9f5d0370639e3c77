"""Two nodes on this machine, each with a real agent process, real or stub ranks, and a customer who asks on.

Every node has its own cluster file, key, state folder, control socket, and a small tree for `--root` in which
its meminfo and boot id are scripted. Addresses, ports and processes are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.agent.node import MARK
from sparkloom.agent.remote import Remote
from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks import Forward, Mode, procs
from sparkloom.ranks.nodes import open_network
from sparkloom.testing.chaos.customer import Customer

NAMES = ("head", "worker")
GIB = 1 << 30


@dataclass
class WorldOptions:
    """What the nodes run. `model` None: stub ranks."""

    folder: Path
    nodes: Mode = "auto"
    model: Path | None = None
    question: str = "What is the capital of France?"
    answer: str = "Paris"
    cluster: dict[str, Any] = field(default_factory=dict)  # overrides, section by section
    ready_s: float = 180.0
    wrap: tuple[str, ...] = ()


class World:
    """The two nodes; a context manager that leaves no process and no namespace behind."""

    def __init__(self, options: WorldOptions) -> None:
        self.options = options
        self.stub = options.model is None
        self.name = "chaos-" + secrets.token_hex(3)
        self.folder = options.folder
        self.network, self.why_loopback = open_network(options.nodes, "spc" + self.name[-6:])
        loopback = self.network.mode == "loopback"
        self.addresses = ("127.0.0.1", "127.0.0.2") if loopback else ("10.77.0.1", "10.77.0.2")
        self.model = options.model or self.folder / "model"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        base = 20000 + secrets.randbelow(20000)
        self.ports = {
            "api": base,
            "master": base + 1,
            "agent": base + 2,
            "head": base + 3,
            "worker": base + 4,
        }
        self.forward: Forward | None = None
        self.customer: Customer | None = None

    # --- life ----------------------------------------------------------------------------------

    def __enter__(self) -> World:
        try:
            if self.stub:
                self.script({"load_s": 0.2})
                fsio.write_json(self.model / "config.json", {"model_type": "stub"})
            key = secrets.token_hex(32)
            for index, name in enumerate(NAMES):
                self._tree(index, name)
                self.memory(name, 64 * GIB)
                self.boot(name)
                self.write_key(name, key)
                self.write_cluster(name)
            self.key = key
            if self.network.mode == "netns":
                self.forward = Forward(self.network, self.network.nodes[0], self.ports["api"], 0)
            for name in reversed(NAMES):  # the worker first, as at a boot
                self.start_agent(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.customer is not None:
            self.customer.stop()
        for p in self.rank_processes():  # nobody waits for their orderly end any more
            procs.send(p, signal.SIGKILL)
        for name in NAMES:
            agent = self.agents.get(name)
            if agent is not None and agent.poll() is None:
                agent.terminate()
        for agent in self.agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(30.0)
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        procs.kill_all(self.rank_processes)
        if self.forward is not None:
            self.forward.close()
        self.network.down()

    # --- files of a node -----------------------------------------------------------------------

    def _tree(self, index: int, name: str) -> None:
        device = self.network.nodes[index].interface
        entry = {"ifname": device, "addr_info": [{"local": self.addresses[index], "prefixlen": 30}]}
        fsio.write_json(self.tree(name) / "proc/net/ip-addr.json", [entry])
        for key, value in (("mtu", "1500"), ("operstate", "up"), ("carrier", "1")):
            fsio.write_text(self.tree(name) / f"sys/class/net/{device}/{key}", value + "\n")

    def tree(self, name: str) -> Path:
        """The node's `--root`."""
        return self.folder / name / "root"

    def memory(self, name: str, available: int) -> None:
        """Script the node's MemAvailable, in bytes."""
        rows = {"MemTotal": 128 * GIB, "MemFree": available, "MemAvailable": available}
        rows |= {"SwapTotal": 0, "SwapFree": 0}
        text = "".join(f"{key}: {value // 1024} kB\n" for key, value in rows.items())
        fsio.write_text(self.tree(name) / "proc/meminfo", text)

    def boot(self, name: str) -> None:
        """Give the node a new boot id."""
        fsio.write_text(self.tree(name) / "proc/sys/kernel/random/boot_id", secrets.token_hex(16) + "\n")

    def write_key(self, name: str, key: str) -> None:
        """The node's agent key."""
        fsio.write_text(self.folder / name / "agent.key", key + "\n", mode=0o600)

    def cluster_path(self, name: str) -> Path:
        """The node's copy of the cluster file."""
        return self.folder / name / "cluster.json"

    def socket(self, name: str) -> Path:
        """The node's control socket."""
        return self.folder / name / "agent.sock"

    def write_cluster(self, name: str, **changes: Any) -> None:
        """The node's cluster file; both copies must have the same content, paths of nodes included."""
        nodes = [
            {
                "name": node,
                "role": node,
                "fabric": {"addresses": [self.addresses[i]]},
                "agent_port": self.ports["agent"] + (10 * i if self.network.mode == "loopback" else 0),
                "status_port": self.ports[node],
            }
            for i, node in enumerate(NAMES)
        ]
        seconds = FAST if self.stub else REAL
        values: dict[str, Any] = {
            "schema_version": 1,
            "name": self.name,
            "nodes": nodes,
            "rendezvous": {"master_port": self.ports["master"]},
            "model": {
                "path": str(self.model),
                "quantization": "none",
                "geometry": "checkpoint",
                "served_name": "chaos",
            },
            "drafter": {"kind": "none"},
            "api": {"port": self.ports["api"]},
            "engine": {"platform": "cpu", "dtype": "float32", "cache_directory": str(self.folder / "cache")},
            "probe": {"checks": "demo", "long_prompt_tokens": 128},
            "serving": {"tool_parser": "", "reasoning_parser": ""},
            "memory": {"return_tolerance_bytes": GIB},
            **seconds,
        }
        if self.stub:
            values["engine"]["command"] = [sys.executable, "-m", "sparkloom.testing.stub_rank"]
        else:
            values["engine"]["command"] = [
                *self.options.wrap,
                sys.executable,
                "-m",
                "sparkloom.testing.forked_serve",
            ]
        for source in (self.options.cluster, changes):
            for section, more in source.items():
                values[section] = {**values.get(section, {}), **more} if isinstance(more, dict) else more
        fsio.write_json(self.cluster_path(name), values)

    def script(self, values: dict[str, Any]) -> None:
        """Script the stub ranks."""
        fsio.write_json(self.model / "stub.json", values)

    # --- agents --------------------------------------------------------------------------------

    def start_agent(self, name: str) -> None:
        """Start the node's agent."""
        index = NAMES.index(name)
        node = self.network.nodes[index]
        inside = ["ip", "netns", "exec", node.namespace] if node.namespace else []
        # Paths differ between the nodes of a real cluster only by machine; here by environment.
        command = [*inside, sys.executable, "-m", "sparkloom.testing.chaos.agent"]
        command += [str(self.folder / name), name, str(self.tree(name))]
        env = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY")}
        with (self.folder / name / "agent.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def kill_agent(self, name: str) -> None:
        """SIGKILL the node's agent, as a crash would."""
        self.agents[name].kill()
        self.agents[name].wait()

    def stop_agent(self, name: str) -> None:
        """Stop it in order."""
        self.agents[name].terminate()
        self.agents[name].wait(60.0)

    def rank_processes(self, name: str | None = None) -> list[procs.Proc]:
        """Processes of ranks (keepers included) on a node, or on all."""
        marks = [f"{MARK}={self.name}/{n}" for n in ([name] if name else NAMES)]
        table = procs.snapshot().values()
        return [p for p in table if any(procs.has_mark(p.pid, m) for m in marks) and p.state not in "ZX"]

    def engines(self, name: str) -> list[procs.Proc]:
        """The node's rank without its keeper."""
        found = self.rank_processes(name)
        return [p for p in found if b"sparkloom.ranks.keeper" not in _command(p.pid)]

    def keepers(self, name: str) -> list[procs.Proc]:
        """The node's keeper."""
        return [p for p in self.rank_processes(name) if b"sparkloom.ranks.keeper" in _command(p.pid)]

    def signal_rank(self, name: str, number: int = signal.SIGKILL) -> int:
        """Signal every process of the node's rank, as if the node's engine broke; return how many."""
        return sum(procs.send(p, number) for p in self.engines(name))

    # --- looking -------------------------------------------------------------------------------

    def status(self, name: str = "head") -> dict[str, Any]:
        """The node's status document, {} while its agent does not answer."""
        try:
            with Remote(self.socket(name)) as remote:
                return remote.status()
        except SparkloomError:
            return {}

    def order(self, kind: str, name: str = "head") -> dict[str, Any]:
        """Give an order to the node's agent."""
        with Remote(self.socket(name)) as remote:
            return remote.order(kind)

    def until(self, what: str, ended: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """Wait for a status.

        Raises:
            SparkloomError: it did not come; the agents' last lines are in the detail.
        """
        limit = time.monotonic() + seconds
        view: dict[str, Any] = {}
        while time.monotonic() < limit:
            view = self.status() or view
            if view and ended(view):
                return view
            time.sleep(0.05 if self.stub else 0.2)
        raise SparkloomError(
            f"{what} did not come within {seconds:g} s (phase {view.get('phase')})",
            detail=json.dumps(view.get("reason")) + "\n" + self.tails(),
            code=Exit.RANK,
        )

    def ready(self, after: int = 0, seconds: float | None = None) -> dict[str, Any]:
        """Wait until a generation above `after` is ready."""
        return self.until(
            "a ready pair",
            lambda v: bool(v.get("ready")) and v["generation"] > after,
            seconds or self.options.ready_s,
        )

    def tails(self, lines: int = 12) -> str:
        """The last lines of both agents' logs."""
        found = []
        for name in NAMES:
            path = self.folder / name / "agent.log"
            text = path.read_text(errors="replace").splitlines() if path.exists() else []
            found += [f"{name} | {line}" for line in text[-lines:]]
        return "\n".join(found)

    @property
    def api(self) -> str:
        """Address of the API for a customer on this machine."""
        port = self.forward.listen if self.forward is not None else self.ports["api"]
        return f"http://127.0.0.1:{port}"

    def _listening(self) -> bool:
        """Whether the head's API takes connections now (a forwarder in between would always take them)."""
        try:
            self.network.dial(self.network.nodes[0], self.ports["api"], timeout=2.0).close()
        except (OSError, TimeoutError):
            return False
        return True

    @contextlib.contextmanager
    def asked(self) -> Iterator[Customer]:
        """A customer who asks a question again and again."""
        options = self.options
        self.customer = Customer(self.api, options.question, options.answer, self._listening)
        self.customer.start()
        try:
            yield self.customer
        finally:
            self.customer.stop()
            self.customer = None


# Seconds for stub ranks (a start takes one) and for real ones on two shared cores (a start takes 20 to 40).
FAST: dict[str, Any] = {
    "agent": {"lease_seconds": 6, "heartbeat_seconds": 0.3},
    "deadlines": {
        "rendezvous_seconds": 60,
        "load_seconds": 15,
        "kv_seconds": 60,
        "graphs_seconds": 60,
        "warmup_seconds": 90,
        "stop_seconds": 6,
        "memory_return_seconds": 4,
    },
    "restart": {
        "start_limit": 3,
        "interval_seconds": 120,
        "backoff_first_seconds": 0.2,
        "backoff_max_seconds": 1.0,
    },
    "liveness": {
        "progress_seconds": 8.0,
        "idle_probe_seconds": 2.0,
        "answer_seconds": 6.0,
        "failures": 1,
        "scrape_seconds": 0.2,
    },
}
REAL: dict[str, Any] = {
    "agent": {"lease_seconds": 6, "heartbeat_seconds": 0.5},
    "deadlines": {
        "rendezvous_seconds": 120,
        "load_seconds": 120,
        "kv_seconds": 120,
        "graphs_seconds": 120,
        "warmup_seconds": 120,
        "stop_seconds": 20,
        "memory_return_seconds": 30,
        "collective_seconds": 60,
    },
    "restart": {
        "start_limit": 3,
        "interval_seconds": 900,
        "backoff_first_seconds": 1.0,
        "backoff_max_seconds": 5.0,
    },
    "liveness": {
        "progress_seconds": 15,
        "idle_probe_seconds": 5,
        "answer_seconds": 10,
        "failures": 1,
        "scrape_seconds": 1,
    },
}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def remove(folder: Path) -> None:
    """Remove a world's folder."""
    shutil.rmtree(folder, ignore_errors=True)

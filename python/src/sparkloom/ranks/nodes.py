"""Two nodes on one machine: network namespaces joined by a veth cable, or plain loopback."""

from __future__ import annotations

import ctypes
import os
import queue
import shutil
import socket
import subprocess
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkloom.errors import Exit, SparkloomError

Mode = Literal["auto", "netns", "loopback"]
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
CLONE_NEWNET = 0x40000000
NETNS = Path("/run/netns")


@dataclass(frozen=True)
class Node:
    """One of the two nodes, as a rank on it sees it."""

    name: str
    address: str
    interface: str
    namespace: str | None = None  # name under /run/netns, None on loopback

    def env(self) -> dict[str, str]:
        """What vLLM needs to bind to this node's own address and not to the host name's."""
        return {"VLLM_HOST_IP": self.address, "GLOO_SOCKET_IFNAME": self.interface}


def why_no_namespaces(proc: Path = Path("/proc")) -> str | None:
    """The reason why this process cannot make network namespaces; None when it seems that it can."""
    if shutil.which("ip") is None:
        return "the program `ip` (package iproute2) is not installed"
    have = 0
    for line in (proc / "self" / "status").read_text().splitlines():
        if line.startswith("CapEff:"):
            have = int(line.split()[1], 16)
    if not (have >> CAP_NET_ADMIN) & (have >> CAP_SYS_ADMIN) & 1:
        return "network namespaces need root"
    return None


def ip(*args: str, check: bool = True) -> bool:
    """Run one `ip` command; whether it succeeded."""
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SparkloomError(
            f"`ip {' '.join(args)}` failed",
            detail=done.stderr,
            mend="run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN, or take the loopback mode",
            code=Exit.RESOURCE,
        )
    return done.returncode == 0


class LoopbackNetwork:
    """Both nodes are this machine; ranks differ by their ports."""

    mode: Literal["netns", "loopback"] = "loopback"

    def __init__(self) -> None:
        self.nodes = (Node("head", "127.0.0.1", "lo"), Node("worker", "127.0.0.1", "lo"))

    def up(self) -> None:
        """Nothing to do."""

    def down(self) -> None:
        """Nothing to undo."""

    def cable(self, plugged: bool) -> None:
        """There is no cable to pull."""
        raise SparkloomError(
            "the loopback mode has no cable to pull", mend="use network namespaces", code=Exit.RESOURCE
        )

    def dial(self, node: Node, port: int, host: str = "127.0.0.1", timeout: float = 5.0) -> socket.socket:
        """Connect to a TCP port of a node."""
        return socket.create_connection((host, port), timeout)

    def free_port(self, node: Node) -> int:
        """A TCP port that nothing on the node listens on right now."""
        with socket.socket() as s:
            s.bind((node.address, 0))
            return int(s.getsockname()[1])


class NamespaceNetwork:
    """Two namespaces, one veth cable: neither node sees the other's loopback, ports or interfaces.

    Args:
        prefix: at most 13 characters; namespaces and interfaces are called `prefix + "a"` and `"b"`.
    """

    mode: Literal["netns", "loopback"] = "netns"

    def __init__(self, prefix: str) -> None:
        self.names = (prefix + "a", prefix + "b")
        self.nodes = (
            Node("head", "10.77.0.1", self.names[0], self.names[0]),
            Node("worker", "10.77.0.2", self.names[1], self.names[1]),
        )
        self._dialers: dict[str, _Dialer] = {}

    def up(self) -> None:
        """Make both namespaces and the cable; on failure nothing is left."""
        try:
            for name in self.names:
                ip("netns", "add", name)
            a, b = self.names
            ip("link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b)
            for node in self.nodes:
                ip("-n", node.interface, "addr", "add", f"{node.address}/30", "dev", node.interface)
                ip("-n", node.interface, "link", "set", "lo", "up")
                ip("-n", node.interface, "link", "set", node.interface, "up")
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Remove the namespaces; the cable goes with them."""
        for dialer in self._dialers.values():
            dialer.close()
        self._dialers.clear()
        remove_namespaces(self.names)

    def cable(self, plugged: bool) -> None:
        """Plug the cable in or pull it out (at the head's end; the worker loses its carrier too)."""
        ip("-n", self.names[0], "link", "set", self.names[0], "up" if plugged else "down")

    def dial(self, node: Node, port: int, host: str = "127.0.0.1", timeout: float = 5.0) -> socket.socket:
        """Connect to `host` as seen from inside the node's namespace (the machine has no route to it)."""
        assert node.namespace
        if node.namespace not in self._dialers:
            self._dialers[node.namespace] = _Dialer(node.namespace)
        return self._dialers[node.namespace].dial(host, port, timeout)

    def free_port(self, node: Node) -> int:
        """A TCP port; in a namespace of its own every port is free, so it is always the same."""
        return 29501


Network = LoopbackNetwork | NamespaceNetwork


def remove_namespaces(names: tuple[str, ...] | list[str]) -> None:
    """Delete namespaces that may or may not exist."""
    for name in names:
        if (NETNS / name).exists():
            ip("netns", "del", name, check=False)


def open_network(mode: Mode, prefix: str) -> tuple[Network, str]:
    """Build the two nodes.

    Returns:
        The network (up) and the reason for loopback where namespaces were possible choices, else "".

    Errors: RESOURCE when `mode` is "netns" and this process may not make namespaces.
    """
    if mode == "loopback":
        return LoopbackNetwork(), "asked for"
    reason = why_no_namespaces()
    if reason is None:
        try:
            network = NamespaceNetwork(prefix)
            network.up()
            return network, ""
        except SparkloomError as error:  # a container may hold the capabilities and still forbid it
            reason = error.detail.strip() or error.summary
    if mode == "netns":
        raise SparkloomError(
            "this process may not make network namespaces",
            field="--nodes",
            value="netns",
            detail=reason,
            mend="run as root with iproute2 installed, or use --nodes loopback",
            code=Exit.RESOURCE,
        )
    return LoopbackNetwork(), reason


class _Dialer:
    """A thread that lives in a namespace: sockets belong to the namespace in which they were made."""

    def __init__(self, namespace: str) -> None:
        self._jobs: queue.Queue[tuple[str, int, float, Future[socket.socket]] | None] = queue.Queue()
        entered: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(namespace, entered), daemon=True)
        self._thread.start()
        entered.result(10)

    def _run(self, namespace: str, entered: Future[None]) -> None:
        try:
            fd = os.open(NETNS / namespace, os.O_RDONLY)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(fd, CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(fd)
        except OSError as error:
            entered.set_exception(error)
            return
        entered.set_result(None)
        while (job := self._jobs.get()) is not None:
            host, port, timeout, result = job
            try:
                result.set_result(socket.create_connection((host, port), timeout))
            except OSError as error:
                result.set_exception(error)

    def dial(self, host: str, port: int, timeout: float) -> socket.socket:
        result: Future[socket.socket] = Future()
        self._jobs.put((host, port, timeout, result))
        return result.result(timeout + 5)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(10)

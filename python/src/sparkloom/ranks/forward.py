"""A TCP forwarder: a loopback port of this machine to a port inside a node."""

from __future__ import annotations

import contextlib
import socket
import threading
from errno import EACCES, EADDRINUSE

from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks.nodes import Network, Node

CHUNK = 65536


class Forward:
    """Listens on 127.0.0.1 and copies bytes both ways, one pair of threads a connection.

    A node's refusal is passed on by closing the caller's connection at once.
    """

    def __init__(self, network: Network, node: Node, port: int, listen: int, host: str = "127.0.0.1") -> None:
        self.network, self.node, self.port, self.host = network, node, port, host
        self._closing = False
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._server = listener(listen)
        self.listen: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True, name=f"forward-{self.listen}")
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._join, args=(inner,), daemon=True).start()

    def _join(self, inner: socket.socket) -> None:
        try:
            outer = self.network.dial(self.node, self.port, self.host)
        except (OSError, TimeoutError):
            inner.close()
            return
        for s in (inner, outer):
            s.settimeout(None)
            with contextlib.suppress(OSError):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # tokens stream one by one
        with self._guard:
            self._open |= {inner, outer}
            if self._closing:
                self._shut(inner, outer)
        back = threading.Thread(target=self._copy, args=(outer, inner), daemon=True)
        back.start()
        self._copy(inner, outer)
        back.join()
        with self._guard:
            self._open -= {inner, outer}
        inner.close()
        outer.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    @staticmethod
    def _shut(*sockets: socket.socket) -> None:
        for s in sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening and break what is open."""
        with self._guard:
            self._closing = True
            self._shut(self._server, *self._open)
        self._server.close()
        self._thread.join(5)


def listener(port: int) -> socket.socket:
    """A socket that listens on 127.0.0.1:`port` (0 for any).

    Errors: RESOURCE when the port is taken or not allowed.
    """
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen(64)
    except OSError as error:
        server.close()
        if error.errno == EADDRINUSE:
            raise SparkloomError(
                f"port {port} of 127.0.0.1 is taken",
                field="--port",
                value=port,
                mend="stop the program that listens there, or choose another port (make demo PORT=8889)",
                code=Exit.RESOURCE,
            ) from None
        if error.errno == EACCES:
            raise SparkloomError(
                f"port {port} may not be opened by this user",
                field="--port",
                value=port,
                mend="choose a port from 1024 on",
                code=Exit.RESOURCE,
            ) from None
        raise
    return server

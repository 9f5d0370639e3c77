"""The command line's side of the local control socket (synchronous)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from sparkloom.errors import Exit, SparkloomError

DEFAULT_SOCKET = "/run/sparkloom/agent.sock"


def socket_path(given: Path | None) -> Path:
    """The option, else $SPARKLOOM_SOCKET, else the default of the cluster file."""
    return given or Path(os.environ.get("SPARKLOOM_SOCKET") or DEFAULT_SOCKET)


class Remote:
    """Asks the agent on this machine."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket), verify=False), timeout=90.0, trust_env=False
        )

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def status(self) -> dict[str, Any]:
        """The status document."""
        return self._ask("GET", "/status")

    def order(self, kind: str) -> dict[str, Any]:
        """Give an order.

        Raises:
            SparkloomError: it was refused; every problem is listed and nothing was changed.
        """
        answer = self._ask("POST", "/order", {"order": kind}, timeout=300.0)  # a restart checks all nodes
        if not answer.get("accepted"):
            problems = answer.get("problems") or ["no reason given"]
            raise SparkloomError(
                f"{kind} was refused and nothing was changed",
                detail="\n".join(problems),
                mend="mend what is listed and give the order again",
                code=Exit.CHECK,
            )
        return answer

    def gather(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        """`logs` or `evidence` of all nodes."""
        answer = self._ask("POST", "/gather", {"what": what, "message": message})
        if answer.get("accepted") is False:
            raise SparkloomError(str(answer["problems"][0]), code=Exit.NETWORK)
        return answer

    def wait(
        self, ended: Callable[[dict[str, Any]], bool], seconds: float, tell: Callable[[str], None]
    ) -> dict[str, Any]:
        """Poll the status until `ended`; every change of phase goes to `tell`.

        Raises:
            SparkloomError: it did not end in time.
        """
        limit = time.monotonic() + seconds
        last = ""
        while True:
            view = self.status()
            line = f"{view.get('phase')}, generation {view.get('generation')}"
            if stage := view.get("stage"):
                line += f", {stage}"
            if line != last:
                tell(line)
                last = line
            if ended(view):
                return view
            if time.monotonic() > limit:
                raise SparkloomError(
                    f"still {view.get('phase')} after {seconds:g} s",
                    detail=explain(view),
                    mend="it goes on without this command: `sparkloom status --watch`",
                    code=Exit.RANK,
                )
            time.sleep(0.3)

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 90.0
    ) -> dict[str, Any]:
        try:
            response = self.http.request(method, "http://agent" + path, json=body, timeout=timeout)
            return dict(response.json())
        except (httpx.HTTPError, ValueError) as error:
            gone = not self.socket.exists()
            raise SparkloomError(
                "no agent runs here" if gone else f"the agent does not answer: {error}",
                file=self.socket,
                mend="start it: `systemctl start sparkloom-agent`, or name its socket with --socket"
                if gone
                else "is this user in the group of the socket? see `journalctl -u sparkloom-agent`",
                code=Exit.RESOURCE,
            ) from error


def explain(view: dict[str, Any]) -> str:
    """Reason and holds as lines."""
    rows = [view.get("reason"), *(view.get("holds") or [])]
    lines = [f"{r['node'] + ': ' if r.get('node') else ''}{r['text']}" for r in rows if r]
    return "\n".join(dict.fromkeys(lines))

"""What `start`, `stop`, `restart` and `drain` share: give the order, follow it, say how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

_HELP = {
    "start": "Let the pair come up; ends when it is ready.",
    "stop": "Take both ranks down; ends when both are gone and memory is back, otherwise says which is not.",
    "restart": "Check everything, then drain, stop and start both ranks.",
    "drain": "Take no part in new work, wait for running requests, then take both ranks down.",
}


def app_for(kind: str) -> typer.Typer:
    """The Typer of one order."""
    app = new_app(_HELP[kind])

    def command(
        wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait; 0: do not.")] = 3600.0,
        socket: Annotated[Path | None, typer.Option("--socket", help="Control socket.")] = None,
        format: FormatOption = Format.text,
    ) -> None:
        follow(kind, wait, socket, format)

    command.__doc__ = _HELP[kind]
    app.command()(command)
    return app


def follow(kind: str, wait: float, socket: Path | None, format: Format) -> None:
    """Give the order and follow it to its end. Exit 7 when it did not come out as ordered."""
    from sparkloom.agent.remote import Remote, explain, socket_path

    def tell(line: str) -> None:
        if format is Format.text:
            print(line, flush=True)

    with Remote(socket_path(socket)) as remote:
        before = remote.status()
        since = remote.order(kind)["moment"]
        if not wait:
            print_json({"accepted": True}) if format is Format.json else print("accepted")
            return
        good = "ready" if kind in ("start", "restart") else "down"
        old = before.get("generation", 0) if kind == "restart" and before.get("ready") else -1

        def ended(view: dict[str, Any]) -> bool:
            if view.get("moment", [0, 0]) < since:
                return False  # a worker's agent has not heard of the order yet
            phase = view.get("phase")
            fresh = view.get("generation", 0) > old
            return phase == "failed" or (phase == good and (fresh or good == "down"))

        view = remote.wait(ended, wait, tell)
    if view["phase"] == "failed":
        raise SparkloomError(
            f"{kind} did not end {good}",
            detail=explain(view),
            mend="`sparkloom logs` and `sparkloom bundle` have the evidence; `sparkloom start` tries again",
            code=Exit.RANK,
        )
    if format is Format.json:
        print_json(view)

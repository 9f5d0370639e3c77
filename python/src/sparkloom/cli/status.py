"""`sparkloom status`: both ranks, phase, generation, memory, acceptance; `--watch` as a live view."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from rich.console import Group

    from sparkloom.agent.remote import Remote

app = new_app("What the pair does now. Exit 0: ready, 3: not ready, 5: no agent, 7: failed.")


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Live view until Ctrl-C.")] = False,
    socket: Annotated[Path | None, typer.Option("--socket", help="Control socket of the agent.")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Show the status document of the agent on this machine."""
    from rich.console import Console
    from rich.live import Live

    from sparkloom.agent.remote import Remote, socket_path

    with Remote(socket_path(socket)) as remote:
        view = remote.status()
        if format is Format.json:
            print_json(view)
        elif not watch:
            Console(highlight=False).print(render(view))
        else:
            with Live(render(view), refresh_per_second=4, screen=False) as live:
                watch_agent(remote, lambda shown: live.update(render(shown)))
    raise SystemExit(int(code_of(view)))


def watch_agent(remote: Remote, draw: Callable[[dict[str, Any]], None], every: float = 1.0) -> None:
    """Draw the status again and again until Ctrl-C; an agent that restarts is waited for."""
    while True:
        time.sleep(every)
        try:
            draw(remote.status())
        except SparkloomError as error:
            draw({"phase": "no agent", "reason": {"text": error.summary}})


def code_of(view: dict[str, Any]) -> Exit:
    """Exit code of a status document."""
    if view.get("ready"):
        return Exit.OK
    return Exit.RANK if view.get("phase") == "failed" else Exit.CHECK


def render(view: dict[str, Any]) -> Group:
    """The document for a terminal."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    from sparkloom.agent.remote import explain

    phase = str(view.get("phase"))
    style = {"ready": "bold green", "failed": "bold red"}.get(phase, "bold yellow")
    head = f"[{style}]{phase}[/{style}]  {escape(str(view.get('cluster', '')))}"
    if "generation" in view:
        head += f"  generation {view['generation']}, for {_span(view['since_s'])}"
    if view.get("age_s"):
        head += f"  (the head's word of {view['age_s']:g} s ago)"
    parts: list[Any] = [head]
    if text := explain(view):
        parts.append(escape(text))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("node", "role", "agent", "rank", "rank memory", "available", "swap", "transport", "KV"):
        table.add_column(name)
    for node in view.get("nodes", []):
        facts = node.get("facts") or {}
        host, rank = facts.get("host") or {}, facts.get("rank") or {}
        table.add_row(
            node["name"],
            node["role"],
            "answers" if node["reachable"] else escape(node["problem"] or "silent"),
            node["rank_phase"] if node["alive"] else "none",
            _size(rank.get("memory")),
            f"{_size(host.get('mem_available'))} of {_size(host.get('mem_total'))}",
            _size(host.get("swap_used")),
            str(rank.get("transport") or "-"),
            f"{rank['kv_gib']} GiB" if rank.get("kv_gib") else "-",
        )
    if view.get("nodes"):
        parts.append(table)
    if engine := view.get("engine"):
        rates = ", ".join(f"{r:.2f}" for r in engine["acceptance"]) or "-"
        hits = engine["prefix_hit_rate"]
        parts.append(
            f"requests {engine['running']} running, {engine['waiting']} waiting; "
            f"KV {engine['kv_usage']:.0%} in use, "
            f"room for {engine['cached_conversation_tokens'] or '?'} tokens of cached conversation; "
            f"prefix hits {'-' if hits is None else format(hits, '.0%')}; drafts accepted {rates}; "
            f"last progress {_span(engine['progress_age_s'])} ago"
        )
    if restarts := view.get("restarts"):
        parts.append("taken down: " + ", ".join(f"{n} x {cause}" for cause, n in restarts.items()))
    return Group(*parts)


def _size(value: float | None) -> str:
    return f"{value / 2**30:.1f} GiB" if value else "-"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

"""`sparkloom chaos`: break a pair on this machine and measure how it comes back."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom import fsio
from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from sparkloom.testing.chaos import Case, Outcome

app = new_app("Kill, hang and mislead a pair on this machine; see that it comes back by itself.")


@app.command()
def chaos(
    cases: Annotated[list[str] | None, typer.Argument(help="Cases; default: all that apply.")] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Model folder for real vLLM ranks, or `parrot`; without: stub ranks."),
    ] = None,
    question: Annotated[str, typer.Option("--question", help="What the customer asks.")] = (
        "What is the capital of France?"
    ),
    answer: Annotated[str, typer.Option("--answer", help="What a right answer contains.")] = "Paris",
    nodes: Annotated[str, typer.Option("--nodes", help="auto, netns or loopback.")] = "auto",
    keep: Annotated[Path | None, typer.Option("--keep", help="Folder for logs that stays.")] = None,
    receipt: Annotated[Path | None, typer.Option("--receipt", help="Write results as JSON.")] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases and end.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Run the cases. Exit 3 when one needs a human, leaves an orphan or serves a wrong answer."""
    from sparkloom.testing.chaos import World, WorldOptions, run_cases, table

    chosen = _choose(cases or [], stub=model is None)
    if model == Path("parrot") and not list_cases:
        from sparkloom.testing import parrot

        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkloom"
        model = parrot.make(cache / "parrot")
    if list_cases:
        for case in chosen:
            print(f"{case.name:<16} {case.what}")
        return
    if nodes not in ("auto", "netns", "loopback"):
        raise SparkloomError(
            "no such way to make nodes", field="--nodes", value=nodes, mend="auto, netns or loopback"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(Exit.INTERRUPTED)))  # so that the world is cleared
    with contextlib.ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkloom-chaos-")))
        options = WorldOptions(folder.absolute(), nodes=nodes, model=model, question=question, answer=answer)  # type: ignore[arg-type]
        if model is not None:
            options.ready_s = 300.0
        world = stack.enter_context(World(options))
        if world.network.mode == "loopback":
            chosen = [c for c in chosen if not c.netns]

        def show(outcome: Outcome) -> None:
            if format is Format.text:
                back = "-" if outcome.back_s is None else f"{outcome.back_s:.1f} s"
                print(f"{outcome.case:<16} {back:>8}  {outcome.verdict}", flush=True)

        outcomes = run_cases(world, chosen, progress=show)
        value = {
            "machine": machine(),
            "ranks": "stub" if model is None else f"vLLM, {model.name}",
            "nodes": world.network.mode,
            "at": time.strftime("%Y-%m-%d", time.gmtime()),
            "outcomes": [o.as_dict() for o in outcomes],
        }
    if receipt is not None:
        fsio.write_json(receipt, value)
    if format is Format.json:
        print_json(value)
    else:
        print("\n" + table(outcomes))
    if len(outcomes) < len(chosen) or any(o.verdict != "ok" for o in outcomes):
        raise SystemExit(int(Exit.CHECK))


def _choose(names: list[str], stub: bool) -> list[Case]:
    from sparkloom.testing.chaos import CASES

    known = {case.name: case for case in CASES if stub or not case.stub_only}
    for name in names:
        if name not in known:
            raise SparkloomError(
                "no such case", value=name, mend="known: " + ", ".join(known), code=Exit.USAGE
            )
    return [known[name] for name in names] or list(known.values())


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "system": platform.system() + " " + platform.release().split("-")[0],
        "python": platform.python_version(),
    }

"""`sparkloom plugin`: prove that vLLM sees the EXL3 plug-in, and that it can serve a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

app = new_app("Prove that vLLM sees the EXL3 plug-in.")


@app.callback()
def group() -> None:
    """Keep `check` a sub-command though it is the only one."""


@app.command()
def check(
    model: Annotated[
        Path | None, typer.Argument(help="Also check this checkpoint: files, rates, markers, shapes.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size that MODEL must split into.")] = 2,
    format: FormatOption = Format.text,
) -> None:
    """Load the plug-in in a fresh process as vLLM does; exit code 3 if vLLM would not see it."""
    found: dict[str, Any] = {"plugin": fresh_process()}
    if not found["plugin"]["ok"]:
        plugin = found["plugin"]
        raise SparkloomError(
            plugin["problem"],
            detail=plugin["traceback"] or "",
            mend=plugin["mend"],
            code=Exit.RESOURCE if plugin["vllm"] is None else Exit.CHECK,
        )
    if model is not None:
        from sparkloom.vllm import survey

        found["model"] = survey.survey(model, tp)
    if format is Format.json:
        print_json(found)
        return
    show(found)


def fresh_process() -> dict[str, Any]:
    """Run the self-check in a new interpreter.

    Raises:
        SparkloomError: it died or printed nothing that can be read.
    """
    done = subprocess.run(
        [sys.executable, "-m", "sparkloom.vllm.selfcheck"], capture_output=True, text=True, timeout=300
    )
    lines = done.stdout.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise SparkloomError(
            f"the self-check ended with status {done.returncode} and no answer",
            detail="\n".join(done.stderr.splitlines()[-20:]),
            mend="mend what the lines above name; run `python -m sparkloom.vllm.selfcheck` to see all",
            code=Exit.CHECK,
        ) from None
    return found


def show(found: dict[str, Any]) -> None:
    """Print the findings for people."""
    plugin = found["plugin"]
    print(
        f"ok: {plugin['vllm']} sees the method exl3 ({plugin['entry_point']}), platform {plugin['platform']}"
    )
    for name, reason in plugin["backends"].items():
        print(f"  back end {name}: {'ready' if reason is None else reason}")
    print(f"  reader's nap: {plugin['nap_us']} us" if plugin["nap_us"] else "  reader's nap: off")
    if plugin["cpu_models"]:
        print(f"  on this CPU: {', '.join(plugin['cpu_models'])}")
    model = found.get("model")
    if model is None:
        return
    print(f"ok: {model['path']} splits over {model['tp']} ranks")
    for group in model["groups"]:
        what = f"{group['matrices']} matrices of {group['bits']:g} bits {group['codebook']}"
        print(f"  {what} in {group['layers']} layers: {group['name']}")

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
from sparkloom.findings import Finding, exit_code, fail, ok, print_text, report_dict

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
    plugin = fresh_process()
    findings = findings_of(plugin)
    found: dict[str, Any] = {**plugin, **report_dict(findings), "model": None}
    if plugin["ok"] and model is not None:
        from sparkloom.vllm import survey

        found["model"] = survey.survey(model, tp)
        findings.append(ok("model", f"{model} splits over {tp} ranks", "\n".join(lines_of(found["model"]))))
        found |= report_dict(findings)
    if format is Format.json:
        print_json(found)
    else:
        print_text(findings)
    raise typer.Exit(Exit.RESOURCE if plugin["vllm"] is None else exit_code(findings))


def findings_of(plugin: dict[str, Any]) -> list[Finding]:
    """The self-check's answer as findings."""
    found = []
    if plugin["vllm"] is not None:
        found.append(ok("plugin.vllm", plugin["vllm"]))
    if plugin["entry_point"] is not None:
        found.append(ok("plugin.entry_point", f"vllm.general_plugins: exl3 = {plugin['entry_point']}"))
    if not plugin["ok"]:
        return [*found, fail("plugin.load", plugin["problem"], plugin["mend"], plugin["traceback"] or "")]
    found.append(ok("plugin.method", f"vLLM knows the method exl3, platform {plugin['platform']}"))
    for name, reason in plugin["backends"].items():
        found.append(ok(f"plugin.backend.{name}", "ready" if reason is None else f"not here: {reason}"))
    nap = plugin["nap_us"]
    found.append(ok("plugin.nap", f"readers nap {nap} us" if nap else "readers spin (enough cores)"))
    if plugin["cpu_models"]:
        found.append(ok("plugin.cpu_models", ", ".join(plugin["cpu_models"])))
    return found


def lines_of(model: dict[str, Any]) -> list[str]:
    """One line per kind of matrix."""
    return [
        f"{g['matrices']} matrices of {g['bits']:g} bits {g['codebook']} in {g['layers']} layers: {g['name']}"
        for g in model["groups"]
    ]


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

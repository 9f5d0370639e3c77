"""`sparkloom probe URL`: checked answers from any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

app = new_app("Ask a server questions whose answers are known; say what was expected and seen.")


@app.command()
def probe(
    url: Annotated[str, typer.Argument(help="Address of the server, with or without /v1.")],
    checks: Annotated[str, typer.Option("--checks", help="Set: full, quick or demo.")] = "full",
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this check (repeatable).")] = None,
    skip: Annotated[list[str] | None, typer.Option("--skip", help="Leave this check out.")] = None,
    checks_file: Annotated[Path | None, typer.Option("--checks-file", help="Own checks as JSON.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model id; else the first listed.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="File with the API key; else $VLLM_API_KEY.")
    ] = None,
    long_words: Annotated[int | None, typer.Option("--long-words", min=16, help="Long prompt.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings.")] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and end.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Run the acceptance probe. Exit 0: all right, 3: a check failed, 6: nobody answers."""
    from sparkloom.probe import Result, Target, Verdict, exit_code, load_checks, pick
    from sparkloom.probe import probe as run_probe
    from sparkloom.probe.checks import parse_checks

    if "://" not in url:
        url = "http://" + url
    known = load_checks()
    if checks_file is not None:
        known = parse_checks(_read(checks_file), checks_file)
    chosen = pick(known, chosen=checks, only=only or (), skip=skip or ())
    if list_checks:
        if format is Format.json:
            print_json([c.model_dump() for c in chosen])
        else:
            for check in chosen:
                print(f"{check.name:<26} {check.deadline_s:>5g} s  {check.why}")
        return
    key = _read(key_file).split("\n")[0].strip() if key_file else os.environ.get("VLLM_API_KEY") or None

    def show(result: Result) -> None:
        if format is Format.text:
            print(
                f"{result.level:<4} {result.check:<26} {result.seconds:>7.2f} s  {_line(result)}", flush=True
            )
            if result.mend:
                print(f"     mend: {result.mend}")

    target = Target(url, key=key, model=model, words=long_words)
    results = asyncio.run(run_probe(target, chosen, progress=show))
    code = exit_code(results, strict=strict)
    if results and all(r.level in (Verdict.FAIL, Verdict.SKIP) for r in results) and _gone(results):
        code = Exit.NETWORK
    if format is Format.json:
        verdict = {Exit.OK: "ok", Exit.WARN: "warn"}.get(code, "fail")
        print_json(
            {
                "url": url,
                "verdict": verdict,
                "exit_code": int(code),
                "results": [r.as_dict() for r in results],
            }
        )
    raise SystemExit(int(code))


def _line(result: object) -> str:
    from sparkloom.probe import Result, Verdict

    assert isinstance(result, Result)
    if result.level is Verdict.OK:
        return result.seen
    return f"expected {result.expected}; saw {result.seen}"


def _gone(results: list[object] | object) -> bool:
    from sparkloom.probe import Result

    assert isinstance(results, list)
    first = results[0]
    assert isinstance(first, Result)
    return first.expected == "a connection"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SparkloomError("cannot read the file", file=path, detail=str(error)) from error

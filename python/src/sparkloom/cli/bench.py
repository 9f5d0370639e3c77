"""`sparkloom bench`: decode, prefill, prefix, concurrency, agent, all."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

if TYPE_CHECKING:
    from sparkloom.bench.protocol import Settings

app = new_app("Measure a server by the stated protocol; receipt as JSON, report as one HTML file.")


class Family(StrEnum):
    """What to measure."""

    decode = "decode"
    prefill = "prefill"
    prefix = "prefix"
    concurrency = "concurrency"
    agent = "agent"
    all = "all"


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Parse `1,2,4` or `8k,32k`."""
    try:
        out = tuple(
            int(p[:-1]) * 1024 if p.endswith("k") else int(p)
            for p in text.lower().replace(" ", "").split(",")
        )
    except ValueError:
        out = ()
    if not out or min(out) < 1:
        raise SparkloomError(
            "not a list of positive numbers",
            field=option,
            value=text,
            mend="write numbers with commas between, such as 1,2,4 or 8k,32k",
            code=Exit.USAGE,
        )
    return out


@app.command()
def bench(
    family: Annotated[Family, typer.Argument(help="Family of cases.")],
    url: Annotated[str, typer.Option(help="Server to measure.")] = "http://127.0.0.1:8888",
    model: Annotated[str | None, typer.Option(help="Model id; default: the first that is served.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the API key.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each decode workload.")] = 10,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate in a run.")] = 400,
    lengths: Annotated[str, typer.Option(help="Prompt lengths of prefill.")] = "8k,32k,128k,256k",
    streams: Annotated[str, typer.Option(help="Stream counts of concurrency.")] = "1,2,4,8",
    workloads: Annotated[str, typer.Option(help="Decode workloads.")] = "structured,prose,code,japanese",
    text: Annotated[str, typer.Option(help="Text of prefill: salted, real or both.")] = "both",
    agent: Annotated[
        str | None,
        typer.Option(help="Status page of the head's agent: both nodes' state.", metavar="URL"),
    ] = None,
    thinking: Annotated[bool, typer.Option(help="Leave the model's thinking on.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for receipt and report.")] = Path("bench-out"),
    publish: Annotated[bool, typer.Option(help="Refuse (exit 3) where the protocol was not met.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Measure FAMILY against the server and write receipt.json, report.html, sparkdash.json, benchy.md."""
    import asyncio

    from rich.console import Console

    from sparkloom.bench import protocol
    from sparkloom.bench.workloads import DECODE

    names = tuple(workloads.split(","))
    if unknown := [n for n in names if n not in DECODE]:
        raise SparkloomError(
            "no such workload",
            field="--workloads",
            value=unknown[0],
            mend="choose from " + ", ".join(DECODE),
            code=Exit.USAGE,
        )
    if text not in ("salted", "real", "both"):
        raise SparkloomError(
            "no such text", field="--text", value=text, mend="choose salted, real or both", code=Exit.USAGE
        )
    settings = protocol.Settings(
        runs=runs,
        tokens=tokens,
        lengths=numbers(lengths, "--lengths"),
        streams=numbers(streams, "--streams"),
        workloads=names,
        text=text,
    )
    if thinking:
        settings.extra = {}
    families = list(protocol.FAMILIES) if family is Family.all else [family.value]
    console = Console(stderr=True)
    key = read_key(api_key_file)
    receipt = asyncio.run(measure(url, model, key, families, settings, console, agent))
    write(out, receipt)
    if format is Format.json:
        print_json(receipt)
    else:
        show(receipt, out, Console())
    if publish and receipt["obstacles"]:
        raise SparkloomError(
            "this run must not be published",
            detail="\n".join(receipt["obstacles"]),
            mend="mend the points above and run again; the receipt is kept all the same",
            code=Exit.CHECK,
        )


def read_key(path: Path | None) -> str | None:
    """The API key in a file, without its newline."""
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise SparkloomError(
            f"cannot read the key file: {error.strerror}", file=path, mend="give a readable file"
        ) from error


async def measure(
    url: str,
    model: str | None,
    key: str | None,
    families: list[str],
    settings: Settings,
    console: Any,
    agent: str | None = None,
) -> dict[str, Any]:
    """Connect, run with a progress line, return the receipt."""
    from sparkloom.bench.client import Server
    from sparkloom.bench.receipt import measure as run

    async with Server(url, model, key) as server:
        with console.status("idle gate") as status:

            def say(line: str) -> None:
                status.update(line)
                console.print(line, style="dim")

            return await run(server, families, settings, say, agent)


def write(out: Path, receipt: dict[str, Any]) -> None:
    """Receipt, report and the two exports, each whole or absent."""
    from sparkloom import fsio
    from sparkloom.bench import export, report

    fsio.write_json(out / "receipt.json", receipt)
    fsio.write_text(out / "report.html", report.render(receipt))
    fsio.write_json(out / "sparkdash.json", export.sparkdash(receipt))
    fsio.write_text(out / "benchy.md", export.benchy(receipt))


def show(receipt: dict[str, Any], out: Path, console: Any) -> None:
    """The summary for a terminal."""
    from rich.table import Table

    from sparkloom.bench import export

    grid = Table(title=f"{receipt['server']['model']}, one stream and together")
    for head in ("workload", "streams", "tok/s", "tok/s a stream", "TTFT ms"):
        grid.add_column(head, justify="left" if head == "workload" else "right")
    for row in export.sparkdash(receipt):
        cells = (row["aggregate_tok_s"], row["per_stream_tok_s"], row["ttft_ms"])
        grid.add_row(row["workload"], str(row["streams"]), *("–" if c is None else f"{c:.2f}" for c in cells))
    if grid.row_count:
        console.print(grid)
    for v in receipt["verdicts"]:
        console.print(f"{v['verdict']}: {v['metric']} = {v['value']:.2f} (band {v['low']} to {v['high']})")
    for line in receipt["obstacles"]:
        console.print(f"not for publication: {line}")
    console.print(f"receipt and report: {out}")

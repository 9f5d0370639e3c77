"""`sparkloom exl3`: look into, make and measure EXL3 checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Inspect, quantize and make EXL3 checkpoints.")


@app.callback()
def _group() -> None:
    """Inspect, quantize and make EXL3 checkpoints."""


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="Checkpoint folder, or one .safetensors file.")],
    every: Annotated[bool, typer.Option("--all", help="Every linear on its own line.")] = False,
    strict: Annotated[bool, typer.Option(help="Warnings also end with a non-zero code.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Show rate, codebook and shape of every EXL3 linear, and what is wrong. Ends with 3 if anything is."""
    from sparkloom.exl3.inspect import inspect as inspect_
    from sparkloom.exl3.show import print_inspection
    from sparkloom.findings import exit_code

    result = inspect_(path)
    code = exit_code(result.findings, strict=strict)
    if format is Format.json:
        print_json({**result.as_dict(), "exit_code": int(code)})
    else:
        print_inspection(result, every=every)
    raise typer.Exit(int(code))


@app.command()
def quantize(
    source: Annotated[Path, typer.Argument(help="Checkpoint folder (or one file) with float weights.")],
    target: Annotated[Path, typer.Argument(help="New folder; one that was begun is gone on with.")],
    bits: Annotated[float, typer.Option(help="1 to 8, or 1.5, 2.5, 3.5 with mul1.")] = 4,
    codebook: Annotated[str, typer.Option(help="mcg, mul1 or 3inst.")] = "mcg",
    include: Annotated[
        list[str] | None,
        typer.Option(help="Tensor names to encode, as patterns; may be repeated. Default: '*.experts.*'."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Patterns by name: experts, or boost (GLM-5.3-Flash's dense projections)."),
    ] = None,
    fp8: Annotated[
        list[str] | None, typer.Option(help="Dense matrices to store as weight-only FP8 instead.")
    ] = None,
    fp8_scales: Annotated[
        str, typer.Option(help="FP8 scales per channel, or per 128 x 128 block.")
    ] = "channel",
    exclude: Annotated[list[str] | None, typer.Option(help="Names to leave as they are.")] = None,
    rate: Annotated[list[str] | None, typer.Option(help="PATTERN=BITS: another rate for some.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random signs.")] = 0,
    share_suh: Annotated[bool, typer.Option(help="Same input scales for gate and up.")] = True,
    skip_odd: Annotated[
        bool, typer.Option("--skip-odd", help="Leave sizes native that are no multiples of 128.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: all cores.")] = None,
    device: Annotated[
        str, typer.Option(help="Where the search runs: auto, cuda or cpu. The result is the same.")
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, write nothing.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Write an EXL3 or FP8 copy of a checkpoint, resumable, with every tensor's error (no calibration)."""
    from sparkloom.exl3 import quantize as work
    from sparkloom.exl3 import show
    from sparkloom.exl3.checkpoint import load
    from sparkloom.exl3.options import Options, chosen_patterns, parse_rates
    from sparkloom.exl3.plan import make_plan

    options = Options(
        bits=bits,
        codebook=codebook,
        include=chosen_patterns(include, preset, fp8),
        exclude=tuple(exclude or ()),
        rates=parse_rates(rate or []),
        seed=seed,
        share_suh=share_suh,
        skip_odd=skip_odd,
        fp8=tuple(fp8 or ()),
        fp8_scales=fp8_scales,
    )
    if dry_run:
        plan = make_plan(load(source), options)
        if format is Format.json:
            print_json(plan.as_dict(options))
        else:
            show.print_plan(plan, options)
        return
    with show.progress_bar() as listener:
        report = work.quantize(source, target, options, threads=threads, progress=listener, device=device)
    if format is Format.json:
        print_json(report)
    else:
        show.print_report(report)


@app.command()
def bench(
    bits: Annotated[list[float] | None, typer.Option(help="Rates to measure; may be repeated.")] = None,
    codebook: Annotated[str, typer.Option(help="mcg, mul1 or 3inst.")] = "mcg",
    tiles: Annotated[int, typer.Option(min=1, help="Tiles per rate.")] = 256,
    threads: Annotated[int, typer.Option(min=1, help="Threads that encode.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "cpu",
    format: FormatOption = Format.text,
) -> None:
    """Measure the encoder here: tiles per second, and the error on Gaussian weights."""
    from sparkloom.exl3 import bench as bench_
    from sparkloom.exl3.device import choose
    from sparkloom.exl3.options import Options

    where = choose(device)
    chosen = Options(bits=4, codebook=codebook, rates=tuple(("*", rate) for rate in bits or [2, 3, 4, 6]))
    rows = [
        bench_.measure(rate, codebook, tiles=tiles, threads=threads, device=where) for _, rate in chosen.rates
    ]
    if format is Format.json:
        print_json(bench_.as_dict(rows))
        return
    from rich.console import Console
    from rich.table import Table

    about = bench_.machine()
    table = Table(title=f"EXL3 encoder, {about['processor']} ({about['vectors']})", title_justify="left")
    for column in ("bits", "codebook", "on", "threads", "tiles/s", "tiles/s per core", "NMSE"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.bits:g}",
            row.codebook,
            row.device,
            str(row.threads),
            f"{row.tiles_per_second:.0f}",
            f"{row.tiles_per_cpu_second:.0f}",
            f"{row.nmse:.3g}",
        )
    Console().print(table)


@app.command("tiny-glm")
def tiny_glm(
    target: Annotated[Path, typer.Argument(metavar="DST", help="New or empty folder.")],
    seed: Annotated[int, typer.Option(help="Another seed gives another model.")] = 0,
    dense: Annotated[str, typer.Option(help="Dense projections: native, exl3 or fp8.")] = "native",
    format: FormatOption = Format.text,
) -> None:
    """Make a tiny random checkpoint of the true GLM-5.3-Flash architecture with EXL3 experts, in seconds."""
    from sparkloom import tiny

    made = tiny.write(target, seed=seed, dense=dense)
    if format is Format.json:
        print_json(made)
    else:
        what = f"{made['tensors']} tensors in {made['shards']} shards, {made['bytes'] / 1e6:.1f} MB"
        print(f"{made['path']}: {what}")


@app.command()
def dense(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="EXL3 checkpoint.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="New folder.")],
    format: FormatOption = Format.text,
) -> None:
    """Write a copy with every EXL3 matrix decoded to float32; any engine loads it."""
    from sparkloom.vllm.dense import write_dense

    count = write_dense(source, target)
    if format is Format.json:
        print_json({"path": str(target), "decoded": count})
    else:
        print(f"{target}: {count} matrices decoded")

"""`sparkloom quality`: seal windows, collect log-probabilities, compare two collections, long-form gate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json
from sparkloom.errors import Exit, SparkloomError

app = new_app("KLD and agreement of two servers over sealed windows; a gate for long answers.")

KeyFile = Annotated[Path | None, typer.Option(help="File with the API key.")]
Model = Annotated[str | None, typer.Option(help="Model id; default: the first that is served.")]


@app.command()
def seal(
    text: Annotated[Path, typer.Argument(help="Text file to cut windows from.")],
    out: Annotated[Path, typer.Argument(help="Windows file to write.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder of the checkpoint whose tokenizer counts.")],
    windows: Annotated[int, typer.Option(min=2, help="Number of windows.")] = 16,
    length: Annotated[int, typer.Option(min=16, help="Tokens of a window.")] = 512,
) -> None:
    """Cut TEXT into sealed windows of token ids."""
    from sparkloom.prefix.render import load_tokenizer
    from sparkloom.quality.windows import cut

    try:
        body = text.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SparkloomError(f"cannot read the text: {error}", file=text, mend="give a UTF-8 text") from error
    ids = load_tokenizer(tokenizer)(body, add_special_tokens=False)["input_ids"]
    cut(list(ids), windows, length, text.name).save(out)
    print(f"{windows} windows of {length} tokens: {out}")


@app.command()
def collect(
    url: Annotated[str, typer.Argument(help="Server to ask.")],
    windows: Annotated[Path, typer.Argument(help="Windows file.")],
    out: Annotated[Path, typer.Argument(help="File of results (JSON lines); an unfinished one is resumed.")],
    top: Annotated[int, typer.Option(min=1, help="Log-probabilities of a position.")] = 20,
    model: Model = None,
    api_key_file: KeyFile = None,
) -> None:
    """Collect prompt log-probabilities of every window."""
    from rich.progress import Progress

    from sparkloom.bench.client import Server
    from sparkloom.cli.bench import read_key
    from sparkloom.quality.collect import collect as run
    from sparkloom.quality.windows import load

    sealed = load(windows)

    async def go() -> int:
        async with Server(url, model, read_key(api_key_file)) as server:
            with Progress() as bar:
                task = bar.add_task("windows", total=len(sealed.rows))
                return len(
                    await run(server, sealed, top, out, lambda i, n: bar.update(task, completed=i, total=n))
                )

    print(f"{asyncio.run(go())} windows in {out}")


@app.command()
def compare(
    windows: Annotated[Path, typer.Argument(help="Windows file that both were collected with.")],
    teacher: Annotated[Path, typer.Argument(help="Results of the teacher.")],
    models: Annotated[list[Path], typer.Argument(help="Results of one or more models.")],
    top: Annotated[int, typer.Option(min=1, help="The --top of the collections.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="PNG to draw.")] = None,
    format: FormatOption = Format.text,
) -> None:
    """KL(teacher || model) and top-1 agreement, with 95 % intervals."""
    from sparkloom.quality.collect import read_done
    from sparkloom.quality.divergence import compare as diverge
    from sparkloom.quality.windows import load

    sealed = load(windows)
    base = full(teacher, read_done(teacher, sealed, top), len(sealed.rows))
    rows: dict[str, Any] = {}
    for path in models:
        done = full(path, read_done(path, sealed, top), len(sealed.rows))
        rows[path.stem] = diverge(base, done).as_dict()
    if plot is not None:
        draw(rows, plot)
    if format is Format.json:
        print_json({"seal": sealed.seal, "teacher": teacher.stem, "top": top, "models": rows})
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=f"against {teacher.stem}, {len(sealed.rows)} windows")
    for head in ("model", "KLD mean", "95 %", "median", "p99", "same top-1", "mass compared"):
        grid.add_column(head, justify="left" if head == "model" else "right")
    for name, r in rows.items():
        grid.add_row(
            name,
            f"{r['kld_mean']:.4f}",
            f"{r['kld_low']:.4f}-{r['kld_high']:.4f}",
            f"{r['kld_median']:.4f}",
            f"{r['kld_p99']:.3f}",
            f"{r['same_top']:.1%}",
            f"{r['coverage']:.1%}",
        )
    console = Console()
    if not console.is_terminal:  # a file or pipe has room for whole numbers
        console.width = 120
    console.print(grid)


def full(path: Path, done: dict[int, Any], want: int) -> dict[int, Any]:
    """The collection, if it is whole."""
    if len(done) < want:
        raise SparkloomError(
            f"{len(done)} of {want} windows were collected",
            file=path,
            mend="finish it with `sparkloom quality collect` (it resumes)",
        )
    return done


def draw(rows: dict[str, Any], path: Path) -> None:
    """KLD and top-1 agreement with their intervals for each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from sparkloom import fsio

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)

    def bars(ax: Any, mean: str, low: str, high: str, scale: float) -> None:
        values = [scale * r[mean] for r in rows.values()]
        below = [max(0.0, v - scale * r[low]) for v, r in zip(values, rows.values(), strict=True)]
        above = [max(0.0, scale * r[high] - v) for v, r in zip(values, rows.values(), strict=True)]
        ax.bar(list(rows), values, yerr=[below, above], capsize=4)
        ax.grid(axis="y", alpha=0.3)

    bars(left, "kld_mean", "kld_low", "kld_high", 1.0)
    left.set_yscale("log")
    left.set_ylabel("KLD, nats (lower is closer)")
    bars(right, "same_top", "same_top_low", "same_top_high", 100.0)
    right.set_ylim(min(100.0, min(100 * r["same_top_low"] for r in rows.values())) - 2, 100)
    right.set_ylabel("same top-1, %")
    with fsio.replacing(path) as part:
        figure.savefig(part, format="png", dpi=100)


@app.command()
def gate(
    url: Annotated[str, typer.Argument(help="Server to judge.")],
    words: Annotated[int, typer.Option(min=100, help="Words of the needle's haystack.")] = 6000,
    only: Annotated[str | None, typer.Option(help="Run the tasks whose name holds this word.")] = None,
    model: Model = None,
    api_key_file: KeyFile = None,
    format: FormatOption = Format.text,
) -> None:
    """Long-form correctness: count to 1000, a table, needles at depth, collapse and loop detectors."""
    from sparkloom.bench.client import Server
    from sparkloom.cli.bench import read_key
    from sparkloom.quality.longform import judge, tasks

    chosen = [t for t in tasks(words) if only is None or only in t.name]
    extra = {"chat_template_kwargs": {"enable_thinking": False}}

    async def go() -> list[dict[str, Any]]:
        out = []
        async with Server(url, model, read_key(api_key_file)) as server:
            for task in chosen:
                sample = await server.chat(
                    [{"role": "user", "content": task.prompt}], max_tokens=task.max_tokens, extra=extra
                )
                verdict = judge(task, sample.text)
                out.append({"task": task.name, "ok": verdict.ok, "seen": verdict.seen})
        return out

    results = asyncio.run(go())
    if format is Format.json:
        print_json({"results": results, "ok": all(r["ok"] for r in results)})
    else:
        for r in results:
            print(f"{'ok  ' if r['ok'] else 'FAIL'} {r['task']}: {r['seen']}")
    if not all(r["ok"] for r in results):
        raise typer.Exit(int(Exit.CHECK))

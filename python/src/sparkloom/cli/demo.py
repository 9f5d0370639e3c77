"""`sparkloom demo`: prepare the demo's model and serve it on a pair of ranks without a GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("A two-node pair on this machine, no GPU needed.")


class ModelName(StrEnum):
    """The demo's models."""

    smol = "smol"
    tiny_glm = "tiny-glm"


class Nodes(StrEnum):
    """What the two nodes are."""

    auto = "auto"
    netns = "netns"
    loopback = "loopback"


class Codebook(StrEnum):
    """EXL3's codebooks."""

    mcg = "mcg"
    mul1 = "mul1"
    three_inst = "3inst"


LayersOption = Annotated[
    int | None,
    typer.Option("--layers", min=0, help="Layers whose experts become EXL3; the rest stays float32."),
]
AllLayersOption = Annotated[bool, typer.Option("--all-layers", help="Encode every layer (about 7 minutes).")]
BitsOption = Annotated[int, typer.Option("--bits", help="Bits per weight, 1 to 8.")]
CodebookOption = Annotated[Codebook, typer.Option("--codebook", help="EXL3's codebook.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the encoder.")]


def _smol_options(
    layers: int | None, all_layers: bool, bits: int, codebook: Codebook, threads: int | None
) -> Any:
    from sparkloom.demo.smol import ALL_LAYERS, DEFAULT_LAYERS, Options
    from sparkloom.errors import Exit, SparkloomError

    if all_layers and layers is not None:
        raise SparkloomError(
            "--layers and --all-layers contradict each other", mend="give one of them", code=Exit.USAGE
        )
    chosen = ALL_LAYERS if all_layers else DEFAULT_LAYERS if layers is None else layers
    return Options(chosen, bits, codebook.value, threads)


@app.command()
def prepare(
    layers: LayersOption = None,
    all_layers: AllLayersOption = False,
    bits: BitsOption = 4,
    codebook: CodebookOption = Codebook.mcg,
    threads: ThreadsOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make everything again but the download.")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Fetch, rewrite and encode the demo's language model into the user's cache."""
    from rich.console import Console

    from sparkloom.demo import smol
    from sparkloom.demo.view import View

    options = _smol_options(layers, all_layers, bits, codebook, threads)
    if fresh:
        smol.forget()
    view = View(Console(stderr=True))
    with view.phase("model smol"):
        made = smol.prepare(options, lambda phase, done, total: view.note(f"{phase} {done}/{total}"))
    if format is Format.json:
        print_json(made.as_dict())
    else:
        print(made.folder)


@app.command()
def run(
    model: Annotated[
        ModelName, typer.Option("--model", help="Real language, or GLM's true architecture.")
    ] = (ModelName.smol),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of the API, on 127.0.0.1.")] = 8888,
    once: Annotated[bool, typer.Option("--once", help="End by itself after the answers are shown.")] = False,
    nodes: Annotated[Nodes, typer.Option("--nodes", help="Namespaces, or loopback processes.")] = Nodes.auto,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="File with the API's key (else VLLM_API_KEY).")
    ] = None,
    layers: LayersOption = None,
    all_layers: AllLayersOption = False,
    bits: BitsOption = 4,
    threads: ThreadsOption = None,
    start_timeout: Annotated[
        float, typer.Option("--start-timeout", min=1, help="Seconds for both ranks to come up.")
    ] = 420.0,
    log_folder: Annotated[Path | None, typer.Option("--log-folder", help="Where the ranks' logs go.")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Serve a demo model on two ranks, prove it by a checked answer, go down without a trace."""
    from rich.console import Console

    from sparkloom.demo import models, preflight
    from sparkloom.demo import run as demo
    from sparkloom.demo.view import View
    from sparkloom.errors import Exit, SparkloomError

    settings = demo.Settings(
        port=port,
        nodes=nodes.value,
        once=once,
        api_key=preflight.read_key(api_key_file),
        key_file=api_key_file,
        start_timeout=start_timeout,
        log_folder=log_folder,
    )
    chosen: models.DemoModel
    if model is ModelName.smol:
        chosen = models.Smol(_smol_options(layers, all_layers, bits, Codebook.mcg, threads))
    elif layers is not None or all_layers:
        raise SparkloomError(
            "only the smol model is encoded layer by layer",
            field="--layers",
            value="all" if all_layers else layers,
            mend="leave the option out, or use --model smol",
            code=Exit.USAGE,
        )
    else:
        chosen = models.TinyGlm()
    view = View(Console(stderr=format is Format.json))
    result = demo.run(chosen, settings, view)
    if format is Format.json:
        print_json(result.as_dict())

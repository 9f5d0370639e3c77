"""`sparkloom prefix-diff A.json B.json`: why the second request misses the first one's cached prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Name the first differing token of two requests, its cause and its cost.")

GLM_BLOCK = 4608  # prefix hits of the pair come in whole blocks of this many tokens (docs/knobs.md)


@app.command()
def prefix_diff(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Body of the earlier request.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Body of the later request.")],
    model: Annotated[Path, typer.Option(help="Folder of the served checkpoint (tokenizer, template).")],
    block: Annotated[int, typer.Option(min=1, help="Tokens of a cache block.")] = GLM_BLOCK,
    prefill_rate: Annotated[
        float | None, typer.Option(min=0.001, help="Your measured prefill rate in tok/s, to say seconds.")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Compare two request bodies under the served chat template."""
    from sparkloom.prefix.doctor import compare, responsible
    from sparkloom.prefix.render import Renderer, load_body

    a, b = load_body(first), load_body(second)
    renderer = Renderer(model)
    text_a, tokens_a = renderer.render(a)
    text_b, tokens_b = renderer.render(b)
    place = responsible(renderer.text, a, b)
    found = compare(a, b, text_a, text_b, tokens_a, tokens_b, block, place)
    seconds = None if prefill_rate is None else round(found.lost_tokens / prefill_rate, 2)
    if format is Format.json:
        print_json({**found.as_dict(), "block": block, "lost_seconds": seconds})
        return
    shown = "none" if found.token is None else f"token {found.token} (character {found.character})"
    print(f"first difference: {shown}, field {found.where}")
    if found.token is not None:
        print(f"  A: {found.context_a}")
        print(f"  B: {found.context_b}")
    print(f"cause: {found.cause}: {found.explanation}")
    cost = "" if seconds is None else f", about {seconds} s at {prefill_rate:g} tok/s"
    print(
        f"cost: {found.reusable_tokens} of {found.tokens[1]} tokens can be re-used "
        f"(whole blocks of {block}); {found.lost_tokens} are computed again{cost}"
    )
    print(f"mend: {found.mend}")

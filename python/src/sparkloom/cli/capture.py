"""`sparkloom capture`: save what the checks read, redacted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkloom.cli.options import Format, FormatOption, new_app, print_json

app = new_app("Save this machine's tree for `--root`, without keys, serials, hardware addresses and names.")


@app.command()
def capture(
    out: Annotated[
        Path, typer.Argument(metavar="OUT.tar", help="Archive to write (.tar, .tar.gz, .tar.xz).")
    ],
    root: Annotated[Path, typer.Option("--root", metavar="DIR", help="Capture this tree instead.")] = Path(
        "/"
    ),
    format: FormatOption = Format.text,
) -> None:
    """Save what fabric and preflight read; send the file, or test with `--root`."""
    from sparkloom.capture import opened, save

    with opened(root) as tree:
        done = save(out, tree)
    if format is Format.json:
        print_json(
            {"path": str(done.path), "files": done.files, "bytes": done.bytes, "skipped": list(done.skipped)}
        )
        return
    print(f"{done.path}: {done.files} files, {done.bytes} bytes")
    if done.skipped:
        print(f"not available here: {', '.join(done.skipped)}")
    print("Keys, serials, hardware addresses and host names were replaced. Look before you send it.")

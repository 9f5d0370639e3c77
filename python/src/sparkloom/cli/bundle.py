"""`sparkloom bundle OUT.tar.gz`: redacted evidence of both nodes with the class of failure."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkloom import fsio
from sparkloom.cli.options import Format, FormatOption, new_app, print_json

if TYPE_CHECKING:
    from sparkloom.redact import Redactor

app = new_app("Save redacted evidence of both nodes to one file, and name the class of failure.")


@app.command()
def bundle(
    out: Annotated[Path, typer.Argument(help="Archive to write, for example evidence.tar.gz.")],
    socket: Annotated[Path | None, typer.Option("--socket", help="Control socket.")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Ask both agents and write the archive. Keys, addresses and host names are replaced on each node."""
    from sparkloom.agent.remote import Remote, socket_path
    from sparkloom.redact import Redactor

    with Remote(socket_path(socket)) as remote:
        found = remote.gather("evidence", {})
        view = redacted(remote.status(), Redactor())
    fsio.write_bytes(out, pack(found, view), mode=0o640)
    classes = {name: answer.get("classes", []) for name, answer in found.items()}
    if format is Format.json:
        problems = {name: a["problem"] for name, a in found.items() if a.get("problem")}
        print_json({"file": str(out), "classes": classes, "problems": problems})
        return
    print(out)
    for name, answer in found.items():
        if answer.get("problem"):
            print(f"{name}: no evidence: {answer['problem']}")
        for finding in answer.get("classes", []):
            print(f"{name}: {finding['kind']}: {finding['summary']}")
            if finding["line"]:
                print(f"  | {finding['line']}")
            print(f"  mend: {finding['mend']}")


def redacted(value: Any, redactor: Redactor) -> Any:
    """A JSON value with every text in it redacted; names and numbers stay."""
    if isinstance(value, dict):
        return {key: redacted(item, redactor) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item, redactor) for item in value]
    return redactor.text(value) if isinstance(value, str) else value


def pack(found: dict[str, Any], view: dict[str, Any]) -> bytes:
    """The archive's bytes: `NODE/FILE` for each text, `status.json`, `classes.json`."""
    texts = {"status.json": json.dumps(view, indent=2)}
    texts["classes.json"] = json.dumps({n: a.get("classes", []) for n, a in found.items()}, indent=2)
    for name, answer in found.items():
        texts |= {f"{name}/{path}": text for path, text in (answer.get("files") or {}).items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in texts.items():
            data = text.encode()
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o640
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()

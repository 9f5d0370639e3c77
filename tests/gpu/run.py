#!/usr/bin/env python3
"""The vLLM matrix: real vLLM on a machine with an NVIDIA GPU (docs/gpu-matrix.md).

    python tests/gpu/run.py stage --out site-archives        # where there is a network
    python tests/gpu/run.py unpack --site ~/site piece-*.tar patched.txz
    python tests/gpu/run.py models --models ~/models
    python tests/gpu/run.py matrix --site ~/site --models ~/models --out ~/matrix [ROW|GROUP ...]
    python tests/gpu/run.py receipt ~/matrix/results.json

With an ordinary install of vLLM 0.33.0 only `matrix` and `receipt` are needed, without --site.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path[:0] = [str(HERE), str(REPO / "python" / "src")]

from gpumatrix import matrix, receipt, rows, stage  # noqa: E402


def parser() -> argparse.ArgumentParser:
    """Commands and their options."""
    made = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = made.add_subparsers(dest="command", required=True)
    one = commands.add_parser("stage", help="build the site archives from wheels")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--wheels", type=Path, help="folder with the wheels (default: download)")
    one.add_argument("--arch", type=int, default=90, help="compute capability times ten (default 90)")
    one.add_argument("--limit-mib", type=float, default=60, help="largest piece (default 60 MiB)")
    one.add_argument("--python", default="3.12")
    one.add_argument("--built", type=Path, help="FlashInfer modules compiled ahead, NAME/NAME.so")
    one.add_argument("--machine", default="x86_64", choices=("x86_64", "aarch64"))
    one = commands.add_parser("unpack", help="put the archives together")
    one.add_argument("--site", type=Path, required=True)
    one.add_argument("archives", type=Path, nargs="+")
    one = commands.add_parser("models", help="make the tiny models")
    one.add_argument("--models", type=Path, required=True)
    one = commands.add_parser("list", help="list the rows")
    one = commands.add_parser("matrix", help="run rows")
    one.add_argument("patterns", nargs="*", help="names or groups of rows (default: all)")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--models", type=Path, required=True)
    one.add_argument("--site", type=Path, help="unpacked site (default: the installed vLLM)")
    one.add_argument("--patched", type=Path, help="vLLM with patches/vllm (default: SITE-patched if there)")
    one.add_argument("--kernels", type=Path, help="sparkloom_exl3.so (default: kernels/build)")
    one.add_argument("--parallel", type=int, default=12)
    one.add_argument("--deadline", type=float, help="seconds after which rows are ended")
    one.add_argument("--commit", help="commit of the sources (default: asked of git)")
    one = commands.add_parser("receipt", help="write docs/receipts/vllm-matrix-DEVICE-DATE.{md,json}")
    one.add_argument(
        "results",
        type=Path,
        nargs="+",
        help="results of one or more runs, oldest first; with --again results.full.json",
    )
    one.add_argument("--out", type=Path, default=REPO / "docs" / "receipts")
    one.add_argument("--note", type=Path, help="Markdown to add at the end")
    one.add_argument(
        "--again", action="store_true", help="judge anew with the rows of these sources; drops others"
    )
    return made


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 when everything holds, 3 when a row does not, 2 on wrong usage."""
    asked = parser().parse_args(argv)
    if asked.command == "stage":
        made = stage.build(
            asked.out,
            asked.arch,
            int(asked.limit_mib * 2**20),
            asked.wheels,
            asked.python,
            asked.machine,
            asked.built,
        )
        for path in made:
            print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path}")
        return 0
    if asked.command == "unpack":
        stage.unpack(asked.archives, asked.site)
        return 0
    if asked.command == "models":
        from gpumatrix import models

        print(json.dumps(models.make(asked.models)))
        return 0
    if asked.command == "list":
        for row in rows.ROWS:
            print(f"{row.group:8} {row.name:20} {row.subject}")
        return 0
    if asked.command == "matrix":
        return run_matrix(asked)
    parts = [json.loads(path.read_text()) for path in asked.results]
    if asked.again:
        for part in parts:
            known = [row for row in rows.ROWS if row.name in part["rows"]]
            records = {name: one["record"] for name, one in part["rows"].items()}
            part["rows"] = matrix.verdicts(known, records)
    for part in parts:
        part["rows"] = receipt.shortened(part["rows"])
    for path in receipt.write(parts, asked.out, asked.note.read_text() if asked.note else ""):
        print(path)
    return 0


def run_matrix(asked: argparse.Namespace) -> int:
    """The `matrix` command."""
    try:
        chosen = rows.select(asked.patterns or ["*"])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    site = asked.site.resolve() if asked.site else None
    patched = asked.patched or (stage.complete_patched(site) if site else None)
    found = matrix.run(
        chosen,
        asked.out.resolve(),
        asked.models.resolve(),
        site=site,
        patched=patched,
        kernels=asked.kernels.resolve() if asked.kernels else None,
        parallel=asked.parallel,
        deadline=asked.deadline,
    )
    if site:
        sys.path.insert(0, str(site))  # for the versions
    result = {"where": receipt.circumstances(REPO, asked.commit), "rows": found}
    (asked.out / "results.full.json").write_text(json.dumps(result))
    result["rows"] = receipt.shortened(found)
    (asked.out / "results.json").write_text(json.dumps(result))
    for name, one in found.items():
        print(f"{'ok  ' if one['ok'] else one['state'] + ' '} {name}")
        for check in one["checks"]:
            if not check["ok"]:
                print(f"       not: {check['check']}: {receipt.seen_in_words(check['seen'])}")
        if error := one["record"].get("error"):
            print(f"       {error}")
    bad = [name for name, one in found.items() if not one["ok"] and one["state"] != "skipped"]
    print(f"{len(found) - len(bad)} of {len(found)} rows hold or were skipped")
    return 3 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

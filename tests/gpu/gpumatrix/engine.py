"""Process of one row: `python engine.py ROW.json RECORD.json`. What goes wrong stands in the record."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main(row_file: str, record_file: str) -> int:
    """Run the row's task and write its record."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    row = json.loads(Path(row_file).read_text())
    start = time.perf_counter()
    record: dict[str, Any] = {}
    try:
        if row["task"] == "serve":
            from gpumatrix.server import serve

            record = serve(row)
        elif row["task"] == "long_context":
            from gpumatrix.long_context import long_context

            record = long_context(row)
        else:
            from gpumatrix import tasks

            record = getattr(tasks, row["task"])(row)
    except BaseException as error:
        traceback.print_exc()
        record["error"] = f"{type(error).__name__}: {error}"[:600]
    record["seconds"] = round(time.perf_counter() - start, 1)
    part = Path(record_file + ".part")
    part.write_text(json.dumps(record))
    part.rename(record_file)
    sys.stdout.flush()
    os._exit(1 if "error" in record else 0)  # engines' threads must not hold the row


if __name__ == "__main__":
    main(*sys.argv[1:])

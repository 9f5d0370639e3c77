"""Ask a server for the log-probabilities of every prompt token of every window; resumable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkloom.bench.client import Server, refused, unreachable
from sparkloom.errors import Exit, SparkloomError
from sparkloom.quality.windows import Windows

Positions = list[dict[int, float]]


def parse_prompt_logprobs(value: Any) -> Positions:
    """vLLM's `prompt_logprobs` (one object a position, the first is null) as token id -> log-probability.

    Raises:
        ValueError: the reply holds no prompt log-probabilities.
    """
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError("no prompt_logprobs in the reply")
    out: Positions = []
    for entry in value[1:]:
        if not isinstance(entry, dict) or not entry:
            raise ValueError("a position without log-probabilities")
        out.append({int(token): float(cell["logprob"]) for token, cell in entry.items()})
    return out


async def ask(server: Server, row: tuple[int, ...], top: int) -> Positions:
    """Log-probabilities of one window's tokens 1..n-1 (top `top` and the token itself)."""
    import httpx

    body = {
        "model": await server.model(),
        "prompt": list(row),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": top,
        "add_special_tokens": False,
    }
    url = server.root + "/v1/completions"
    try:
        reply = await server.http.post(url, json=body)
    except httpx.HTTPError as error:
        raise unreachable(server.root, error) from error
    if reply.status_code != 200:
        raise refused(url, reply)
    try:
        return parse_prompt_logprobs(reply.json()["choices"][0].get("prompt_logprobs"))
    except (ValueError, KeyError, IndexError) as error:
        raise SparkloomError(
            f"the server gave no usable prompt log-probabilities: {error}",
            file=url,
            mend="use a vLLM server started with --max-logprobs of at least the --top asked for",
            code=Exit.RANK,
        ) from error


def read_done(path: Path, windows: Windows, top: int) -> dict[int, Positions]:
    """Finished windows of an earlier run; a half-written last line is dropped.

    Raises:
        SparkloomError: the file belongs to other windows or another `top`.
    """
    done: dict[int, Positions] = {}
    if not path.exists():
        return done
    for line in path.read_text().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if value["seal"] != windows.seal or value["top"] != top:
            raise SparkloomError(
                "the file holds results of other windows or another --top",
                file=path,
                field="seal",
                value=value["seal"],
                mend="give another output file, or the windows it was made from",
            )
        done[int(value["window"])] = [{int(k): v for k, v in p.items()} for p in value["positions"]]
    return done


async def collect(
    server: Server, windows: Windows, top: int, path: Path, say: Callable[[int, int], None]
) -> dict[int, Positions]:
    """Collect what is missing, one line a window, flushed to disk before the next is asked."""
    done = read_done(path, windows, top)
    path.parent.mkdir(parents=True, exist_ok=True)
    keep = b"".join(  # a line that a kill cut short is asked for again
        line + b"\n" for line in (path.read_bytes().split(b"\n") if path.exists() else []) if is_json(line)
    )
    with path.open("wb") as out:
        out.write(keep)
        for i, row in enumerate(windows.rows):
            if i not in done:
                done[i] = await ask(server, row, top)
                record = {"seal": windows.seal, "top": top, "window": i, "positions": done[i]}
                out.write(json.dumps(record).encode() + b"\n")
                out.flush()
                os.fsync(out.fileno())
            say(i + 1, len(windows.rows))
    return done


def is_json(line: bytes) -> bool:
    """Whether a line is whole."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True

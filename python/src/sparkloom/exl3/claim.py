"""The target folder of a long run: whose it is, whether it is the same work, one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3.checkpoint import Checkpoint
from sparkloom.exl3.options import Options
from sparkloom.exl3.plan import Plan

WORK = ".sparkloom-quantize"
"""Folder inside the target: the plan, journals, and a marker for every finished shard."""


@contextlib.contextmanager
def os_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SparkloomError(
            f"cannot write the target: {error.strerror or error}",
            file=error.filename or target,
            mend="make space or mend the permissions, then run the same command again: it goes on from here",
            code=Exit.RESOURCE,
        ) from None


@contextlib.contextmanager
def claimed(checkpoint: Checkpoint, target: Path, plan: Plan, options: Options) -> Iterator[Path]:
    """Make the target ours, or raise; yield its work folder, locked."""
    root = checkpoint.root.resolve()
    if target.resolve() == root or root in target.resolve().parents:
        raise SparkloomError(
            "the target lies in the source", file=target, mend="name another folder", code=Exit.USAGE
        )
    work = target / WORK
    claim = {"digest": plan.digest, "source": str(root), "options": options.as_dict()}
    if target.exists():
        if not target.is_dir() or (any(target.iterdir()) and not (work / "plan.json").is_file()):
            raise SparkloomError(
                "the target exists and was not made by `sparkloom exl3 quantize`",
                file=target,
                mend="name a new or empty folder",
                code=Exit.USAGE,
            )
        if (work / "plan.json").is_file():
            _same_work(work / "plan.json", claim)
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SparkloomError(
                "another run is writing this target",
                file=target,
                mend="wait for it, or stop it first",
                code=Exit.RESOURCE,
            ) from None
        if not (work / "plan.json").is_file():
            fsio.write_json(work / "plan.json", claim)
        yield work


def _same_work(path: Path, claim: dict[str, Any]) -> None:
    try:
        before = json.loads(path.read_text())
    except ValueError:
        before = {}
    if before.get("digest") == claim["digest"]:
        return
    new = json.loads(json.dumps(claim["options"]))
    old = before.get("options", {})
    differences = [
        f"{key}: {old.get(key)!r} before, {value!r} now"
        for key, value in new.items()
        if old.get(key) != value
    ]
    raise SparkloomError(
        "the target was begun from another source or with other options",
        file=path,
        mend="give the same options, name another folder, or remove this one",
        detail="\n".join(differences) or "the source's files have changed",
        code=Exit.USAGE,
    )

"""Run rows in parallel on one GPU, each a process with a time limit; judge when all have ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumatrix import judge
from gpumatrix.rows import Row

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / "python" / "src"


def environment(row: Row, sites: Sequence[Path], kernels: Path | None) -> dict[str, str]:
    """Environment of a row's process; `sites` come before what is installed."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("SPARKLOOM_")}
    paths = [str(SOURCES), str(HERE.parent), *map(str, sites), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    nvcc = shutil.which("nvcc")
    if nvcc and "CUDA_HOME" not in env:
        env["CUDA_HOME"] = str(Path(nvcc).resolve().parent.parent)
    env |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": "exl3" if row.plugin else "none",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if row.plugin:
        env["SPARKLOOM_EXL3_BACKEND"] = row.backend
        if row.options is not None:
            env["SPARKLOOM_PATCHES"] = json.dumps(row.options)
        if kernels:
            env["SPARKLOOM_KERNELS"] = str(kernels)
    elif row.options is not None:
        env["SPARKLOOM_PATCHES"] = json.dumps(row.options)
    return env | dict(row.env)


def filled(value: Any, models: Path) -> Any:
    """`{models}` in engine arguments replaced by the folder of the tiny models."""
    if isinstance(value, str):
        return value.replace("{models}", str(models))
    if isinstance(value, Mapping):
        return {name: filled(inner, models) for name, inner in value.items()}
    return value


def plugin_entry(out: Path) -> Path | None:
    """A folder whose metadata names the plug-in's entry point; None where Sparkloom is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("sparkloom")
        return None
    except PackageNotFoundError:
        folder = out / "entry"
        info = folder / "sparkloom-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sparkloom\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\nexl3 = sparkloom.vllm:register\n")
        return folder


class Running:
    """One started row."""

    def __init__(self, row: Row, out: Path, models: Path, env: Mapping[str, str]) -> None:
        self.row, self.began, self.why = row, time.monotonic(), "the process died"
        self.record_file = out / f"{row.name}.json"
        self.record_file.unlink(missing_ok=True)
        asked = out / f"{row.name}.row.json"
        told = {**row.as_dict(), "model_path": str(models / row.model), "engine": filled(row.engine, models)}
        asked.write_text(json.dumps(told))
        with (out / f"{row.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), str(asked), str(self.record_file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )

    def done(self) -> bool:
        """Whether it has ended; ends it at its limit."""
        if self.process.poll() is not None:
            return True
        if time.monotonic() - self.began > self.row.limit:
            self.why = f"no result within {self.row.limit} s"
            self.end()
            return True
        return False

    def end(self) -> None:
        """End the whole process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def record(self) -> dict[str, Any]:
        """What the row wrote, or why it wrote nothing."""
        self.end()  # what it left behind
        wall = round(time.monotonic() - self.began, 1)
        if self.record_file.exists():
            found: dict[str, Any] = json.loads(self.record_file.read_text())
        else:
            found = {"error": self.why}
        found["wall_s"] = wall
        return found


def run(
    rows: Sequence[Row],
    out: Path,
    models: Path,
    *,
    site: Path | None = None,
    patched: Path | None = None,
    kernels: Path | None = None,
    parallel: int = 12,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Run and judge rows.

    Args:
        out: folder of logs and records.
        site, patched: folders to import vLLM from, stock and with `patches/vllm`; None: the installed one.
        kernels: the EXL3 kernel library.
        parallel: most rows at once.
        deadline: seconds after which nothing more is started and what runs is ended.

    Returns:
        Per row: the row, its record and its verdicts.
    """
    out.mkdir(parents=True, exist_ok=True)
    entry = plugin_entry(out)
    began = time.monotonic()
    waiting, running, records = list(rows), [], {}
    try:
        while waiting or running:
            late = deadline is not None and time.monotonic() - began > deadline
            if late:
                for one in running:
                    one.why = "ended: the time was up"
                    one.end()
                for row in waiting:
                    records[row.name] = {"error": "not started: the time was up"}
                waiting = []
            while waiting and len(running) < parallel:
                row = waiting.pop(0)
                if row.patched and patched is None:
                    records[row.name] = {"skipped": "no patched vLLM here (--patched)"}
                    continue
                sites = [path for path in (entry, patched if row.patched else None, site) if path]
                env = environment(row, sites, kernels)
                running.append(Running(row, out, models, env))
            for one in [r for r in running if r.done()]:
                running.remove(one)
                records[one.row.name] = record = one.record()
                print(
                    f"{time.monotonic() - began:6.1f} s  {one.row.name}: {record.get('error', 'ended')}",
                    flush=True,
                )
            time.sleep(0.2)
    finally:
        for one in running:
            one.end()
    return verdicts(rows, records)


def verdicts(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Judge every row against the records."""
    found = {}
    for row in rows:
        record = records.get(row.name, {"error": "not run"})
        judged = [] if "skipped" in record else judge.judge(row.checks, record, records)
        state = "skipped" if "skipped" in record else "failed" if "error" in record else "ran"
        found[row.name] = {
            "row": row.as_dict(),
            "state": state,
            "ok": state == "ran" and all(one["ok"] for one in judged),
            "checks": judged,
            "record": dict(record),
        }
    return found


def unfit() -> str | None:
    """Why this machine cannot run the matrix; None if it can. Imports neither torch nor vLLM."""
    from importlib.metadata import PackageNotFoundError, version

    if shutil.which("nvidia-smi") is None:
        return "the vLLM matrix needs an NVIDIA GPU with its driver: no nvidia-smi here"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if listed.returncode or "GPU 0" not in listed.stdout:
        return "the vLLM matrix needs an NVIDIA GPU: nvidia-smi lists none"
    try:
        found = version("vllm")
    except PackageNotFoundError:
        return "the vLLM matrix needs vLLM 0.33: none is installed"
    return None if found.startswith("0.33.") else f"the vLLM matrix needs vLLM 0.33, this is {found}"

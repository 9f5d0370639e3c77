"""Write an EXL3 (and FP8) copy of a checkpoint, shard by shard, without calibration data.

Memory stays near eight times the largest matrix in float32. A run that is stopped goes on where it was, after
the last whole linear. The target folder tells by its plan whose it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkloom import fsio
from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3 import fp8
from sparkloom.exl3.checkpoint import CONFIG, INDEX, QUANTIZATION, Checkpoint, declared, load
from sparkloom.exl3.claim import claimed, os_errors
from sparkloom.exl3.declare import quantization_config, tensor_storage
from sparkloom.exl3.device import choose
from sparkloom.exl3.encode import encode
from sparkloom.exl3.headers import Header, header_bytes, read_array, read_floats
from sparkloom.exl3.linear import Linear, dense_weight
from sparkloom.exl3.options import Options
from sparkloom.exl3.plan import Plan, Shard, Target, Unit, make_plan
from sparkloom.exl3.rates import TILE
from sparkloom.exl3.shardfile import ShardFile
from sparkloom.exl3.signs import unpack_signs

REPORT = "quantize-report.json"
_SPARE_DISK = 64 << 20
_WEIGHT_FILES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".npz"}


@dataclass(frozen=True)
class Progress:
    """Where the work stands: tiles of 256 weights, and the linear being encoded."""

    done: int
    total: int
    shard: str
    name: str


Listener = Callable[[Progress], None]


def quantize(
    source: Path,
    target: Path,
    options: Options,
    *,
    threads: int | None = None,
    progress: Listener | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Quantize a checkpoint; return the report that is also written to `quantize-report.json`.

    Args:
        source: folder or file of safetensors with bf16, fp16, fp32 or fp64 weights.
        target: new or empty folder, or one that an earlier run of the same work left.
        options: what to encode and how.
        threads: of the encoder; all cores if left out.
        progress: called after every few tiles.
        device: `auto`, `cuda` or `cpu`; the result is the same.

    Raises:
        SparkloomError: see `make_plan`; a foreign or busy target; no space left; interrupted.
    """
    checkpoint = load(source)
    plan = make_plan(checkpoint, options)
    with os_errors(target), claimed(checkpoint, target, plan, options) as work:
        run = _Run(checkpoint, plan, options, target, work, threads, progress, choose(device))
        return run.all()


@dataclass
class _Run:
    checkpoint: Checkpoint
    plan: Plan
    options: Options
    target: Path
    work: Path
    threads: int | None
    progress: Listener | None
    device: str = "cpu"
    tiles: int = 0

    def all(self) -> dict[str, Any]:
        """Write every shard and then the files round them."""
        total = sum(shard.tiles for shard in self.plan.shards)
        self._check_disk()
        notes: list[dict[str, Any]] = []
        files: list[dict[str, Any]] = []
        for shard in self.plan.shards:
            done = self._finished(shard)
            if done is None:
                done = self._write(shard, total)
            else:
                self.tiles += shard.tiles
                self._tell(total, shard, "")
            notes += done["linears"]
            files.append({key: done[key] for key in ("name", "sha256", "nbytes")})
        self._write_index()
        self._write_configs()
        self._copy_rest()
        report = self._report(notes, files)
        fsio.write_json(self.target / REPORT, report)
        return report

    def _tell(self, total: int, shard: Shard, name: str, more: int = 0) -> None:
        if self.progress is not None:
            self.progress(Progress(self.tiles + more, total, shard.name, name))

    def _check_disk(self) -> None:
        missing = 0
        for shard in self.plan.shards:
            for path in (self.target / shard.name, self.work / f"{shard.name}.part"):
                if path.is_file():
                    missing -= path.stat().st_size
            missing += shard.nbytes
        free = shutil.disk_usage(self.target).free
        if missing + _SPARE_DISK > free:
            raise SparkloomError(
                f"the target needs {missing / 2**30:.1f} GiB more, its disk has {free / 2**30:.1f} GiB free",
                file=self.target,
                mend="make space, or name a folder on another disk",
                code=Exit.RESOURCE,
            )

    def _marker(self, shard: Shard) -> Path:
        return self.work / f"{shard.name}.done.json"

    def _finished(self, shard: Shard) -> dict[str, Any] | None:
        """The marker of a shard that an earlier run finished and that is still as it was, else None."""
        try:
            marker: dict[str, Any] = json.loads(self._marker(shard).read_text())
            wanted = marker["sha256"]
            final, part = self.target / shard.name, self.work / f"{shard.name}.part"
            if not final.is_file() and part.is_file():
                part.replace(final)  # stopped between the marker and the renaming
            with final.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == wanted:
                    return marker
        except (OSError, ValueError, KeyError):
            pass
        self._marker(shard).unlink(missing_ok=True)
        return None

    def _write(self, shard: Shard, total: int) -> dict[str, Any]:
        header = self.checkpoint.headers[shard.name]
        head = header_bytes(shard.layout, {"format": "pt", **header.metadata})
        out = ShardFile(self.target / shard.name, self.work, head)
        try:
            for index, unit in enumerate(shard.units):
                if index >= len(out.done):
                    self._unit(unit, shard, header, out, total)
                self.tiles += sum(t.tiles for t in unit.targets)
                if unit.targets:
                    self._tell(total, shard, unit.name)
            marker = {
                "name": shard.name,
                "nbytes": len(head) + shard.nbytes,
                "linears": [linear for note in out.done for linear in note.get("linears", [])],
            }
            # The marker first: whoever finds it without the file renames the part.
            marker["sha256"] = out.flush()
            fsio.write_json(self._marker(shard), marker)
            out.finish()
        except KeyboardInterrupt:
            raise SparkloomError(
                f"interrupted; {self.tiles} of {total} tiles are done and kept",
                file=self.target,
                mend="run the same command again: it goes on from here",
                code=Exit.INTERRUPTED,
            ) from None
        finally:
            out.close()
        return marker

    def _unit(self, unit: Unit, shard: Shard, header: Header, out: ShardFile, total: int) -> None:
        if unit.copy is not None:
            out.add(_raw(header, unit.copy), {"name": unit.copy})
        elif unit.signs is not None:
            signs = unpack_signs(read_array(header, header.tensors[unit.signs[0]]))
            out.add([signs.tobytes()], {"name": unit.signs[1]})
        elif unit.targets[0].fp8:
            pieces, note = self._eight(unit.targets[0], header)
            out.add(pieces, {"name": unit.name, "linears": [note]})
        else:
            report = (
                None if self.progress is None else lambda done, _: self._tell(total, shard, unit.name, done)
            )
            linears, notes = self._encode(unit, header, report)
            pieces = [array.tobytes() for linear in linears for array in linear.tensors().values()]
            out.add(pieces, {"name": unit.name, "linears": notes})

    def _eight(self, target: Target, header: Header) -> tuple[list[bytes], dict[str, Any]]:
        start = time.monotonic()
        weight = read_floats(header, header.tensors[target.source]).reshape(target.n, target.k)
        with named(header, target.key):
            matrix = fp8.encode(weight, target.fp8 or "channel")
        nmse, worst = fp8.error_of(matrix, weight)
        pieces = [matrix.codes.tobytes(), matrix.scale.tobytes()]
        return pieces, {
            "name": target.key,
            "source": target.source,
            "source_dtype": header.tensors[target.source].dtype,
            "k": target.k,
            "n": target.n,
            "bits": target.bits,
            "codebook": f"fp8 {matrix.scales}",
            "nmse": nmse,
            "max_abs_error": worst,
            "nbytes": matrix.codes.nbytes + matrix.scale.nbytes,
            "shares_suh_with": None,
            "seconds": round(time.monotonic() - start, 3),
        }

    def _encode(
        self, unit: Unit, header: Header, progress: Callable[[int, int], None] | None
    ) -> tuple[list[Linear], list[dict[str, Any]]]:
        start = time.monotonic()
        weights = [_weight(header, target) for target in unit.targets]
        with named(header, unit.name):
            whole = encode(
                weights[0] if len(weights) == 1 else np.concatenate(weights, axis=1),
                unit.targets[0].bits,
                self.options.codebook,
                _seed(self.options.seed, unit.name),
                threads=self.threads,
                progress=progress,
                device=self.device,
            )
        linears, notes, column = [], [], 0
        for target, weight in zip(unit.targets, weights, strict=True):
            part = _columns(whole, column, column + target.n)
            column += target.n
            nmse, worst = error_of(part, weight)
            if target.bias is not None:
                bias = read_floats(header, header.tensors[target.bias])
                part = replace(part, bias=bias.astype(np.float16))
            linears.append(part)
            notes.append(
                {
                    "name": target.key,
                    "source": target.source,
                    "source_dtype": header.tensors[target.source].dtype,
                    "k": target.k,
                    "n": target.n,
                    "bits": target.bits,
                    "codebook": part.codebook,
                    "nmse": nmse,
                    "max_abs_error": worst,
                    "nbytes": part.nbytes,
                    "shares_suh_with": next((t.key for t in unit.targets if t is not target), None),
                    "seconds": 0.0,
                }
            )
        for note in notes:
            note["seconds"] = round((time.monotonic() - start) / len(notes), 3)
        return linears, notes

    def _write_index(self) -> None:
        if self.checkpoint.index is None:
            return
        names = {name: shard.name for shard in self.plan.shards for name, _, _ in shard.layout}
        total = sum(shard.nbytes for shard in self.plan.shards)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        fsio.write_json(self.target / INDEX, index)

    def _write_configs(self) -> None:
        said = quantization_config(self.plan, self.options, declared(self.checkpoint.config))
        if self.checkpoint.config:
            config = dict(self.checkpoint.config)
            if isinstance(config.get("text_config"), dict):
                config["text_config"] = {
                    k: v for k, v in config["text_config"].items() if k != "quantization_config"
                }
            fsio.write_json(self.target / CONFIG, {**config, "quantization_config": said})
        storage = tensor_storage(self.plan, self.options)
        fsio.write_json(self.target / QUANTIZATION, {**said, "tensor_storage": storage})

    def _copy_rest(self) -> None:
        """Tokenizer, templates, licence: every other file beside the weights."""
        ours = {CONFIG, INDEX, QUANTIZATION, REPORT}
        alone = self.checkpoint.index is None and not self.checkpoint.config
        for path in [] if alone else sorted(self.checkpoint.root.iterdir()):
            if path.name in ours or path.name.startswith(".") or path.suffix in _WEIGHT_FILES:
                continue
            if path.is_file():
                with fsio.replacing(self.target / path.name) as part:
                    shutil.copyfile(path, part)

    def _report(self, notes: list[dict[str, Any]], files: list[dict[str, Any]]) -> dict[str, Any]:
        weights = sum(n["k"] * n["n"] for n in notes)
        before = sum(h.file_size for h in self.checkpoint.headers.values())
        return {
            "source": str(self.checkpoint.root),
            "target": str(self.target),
            "options": self.options.as_dict(),
            "device": self.device,
            "summary": {
                "linears": len(notes),
                "weights": weights,
                "bits_per_weight": round(sum(n["bits"] * n["k"] * n["n"] for n in notes) / weights, 4),
                "nmse_mean": sum(n["nmse"] * n["k"] * n["n"] for n in notes) / weights,
                "nmse_max": max(n["nmse"] for n in notes),
                "tiles": sum(shard.tiles for shard in self.plan.shards),
                "encode_seconds": round(sum(n["seconds"] for n in notes), 1),
                "nbytes_before": before,
                "nbytes_after": sum(f["nbytes"] for f in files),
            },
            "linears": notes,
            "skipped": self.plan.skipped,
            "files": files,
        }


@contextlib.contextmanager
def named(header: Header, name: str) -> Iterator[None]:
    """Say in an encoder's error which matrix of which file it met."""
    try:
        yield
    except SparkloomError as error:
        raise SparkloomError(
            error.summary,
            file=header.path,
            field=name,
            value=error.value,
            mend=error.mend,
            code=error.code,
        ) from None


def _raw(header: Header, name: str) -> Iterator[bytes]:
    entry = header.tensors[name]
    with header.path.open("rb") as file:
        file.seek(header.data_start + entry.start)
        left = entry.nbytes
        while left:
            chunk = file.read(min(left, 1 << 24))
            if not chunk:
                raise SparkloomError(
                    "the source was cut short while it was read", file=header.path, field=name
                )
            left -= len(chunk)
            yield chunk


def _weight(header: Header, target: Target) -> NDArray[np.float32]:
    """float32[k, n] of a matrix stored [n, k]."""
    flat = read_floats(header, header.tensors[target.source], target.offset, target.k * target.n)
    return np.ascontiguousarray(flat.reshape(target.n, target.k).T)


def _seed(seed: int, name: str) -> int:
    """Own signs for every linear, the same in every run."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")


def _columns(linear: Linear, start: int, stop: int) -> Linear:
    """Outputs start to stop; suh is shared."""
    if (start, stop) == (0, linear.n):
        return linear
    tiles = slice(start // TILE, stop // TILE)
    return replace(
        linear, trellis=np.ascontiguousarray(linear.trellis[:, tiles]), svh=linear.svh[start:stop].copy()
    )


def error_of(linear: Linear, weight: NDArray[np.float32]) -> tuple[float, float]:
    """(squared error over squared weight, largest absolute error) against the source's float32[k, n]."""
    error = norm = worst = 0.0
    for start in range(0, linear.n, 2048):  # bounds the memory of wide matrices
        stop = min(start + 2048, linear.n)
        wanted = weight[:, start:stop]
        difference = dense_weight(_columns(linear, start, stop)) - wanted
        error += float(np.square(difference, dtype=np.float64).sum())
        norm += float(np.square(wanted, dtype=np.float64).sum())
        worst = max(worst, float(np.abs(difference).max()))
    return (error / norm if norm else 0.0), worst

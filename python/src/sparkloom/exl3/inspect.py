"""Look into a checkpoint: which linears are EXL3, at which rate, and what is wrong.

Only headers and the four bytes of each marker are read, so a checkpoint of 170 GB takes seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.exl3.checkpoint import INDEX, Checkpoint, declared, load
from sparkloom.exl3.codebooks import MARKERS, marker_value
from sparkloom.exl3.headers import Entry, Header, pread, truncated
from sparkloom.exl3.linear import SUFFIXES
from sparkloom.exl3.rates import BLOCK, HALF_RATES, TILE, bits_of
from sparkloom.findings import Finding, fail, from_error, warn

_OWN = frozenset(SUFFIXES) - {"bias"}
_REFETCH = "fetch the file again, or quantize again"


@dataclass(frozen=True)
class Module:
    """One EXL3 linear.

    Attributes:
        name: key without suffix.
        bits, codebook: of its trellis; None where they cannot be told.
        k, n: inputs and outputs.
        nbytes: of all its tensors.
        bias: whether it has one.
        old_signs: whether its scales are packed signs of an old file.
        files: that hold its tensors.
    """

    name: str
    bits: int | float | None
    codebook: str | None
    k: int
    n: int
    nbytes: int
    bias: bool
    old_signs: bool
    files: tuple[str, ...]


@dataclass
class Inspection:
    """Everything that `inspect` found."""

    path: Path
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    modules: list[Module] = field(default_factory=list)
    native: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Counts, bytes and rates."""
        weights = sum(m.k * m.n for m in self.modules)
        rates = Counter(f"{m.bits:g}" if m.bits else "unknown" for m in self.modules)
        return {
            "modules": len(self.modules),
            "rates": dict(sorted(rates.items())),
            "codebooks": dict(Counter(m.codebook or "unknown" for m in self.modules)),
            "weights": weights,
            "bits_per_weight": round(_average_bits(self.modules), 4) if weights else None,
            "bits_per_weight_with_scales": round(8 * sum(m.nbytes for m in self.modules) / weights, 4)
            if weights
            else None,
            "exl3_bytes": sum(m.nbytes for m in self.modules),
            "native_tensors": len(self.native),
            "native_bytes": sum(e.nbytes for e in self.native),
        }

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `--format json`."""
        return {
            "path": str(self.path),
            "summary": self.summary(),
            "files": self.files,
            "modules": [asdict(m) for m in self.modules],
            "native": [
                {"name": e.name, "dtype": e.dtype, "shape": list(e.shape), "nbytes": e.nbytes}
                for e in self.native
            ],
            "problems": [f.as_dict() for f in self.findings],
        }


def _average_bits(modules: list[Module]) -> float:
    total = sum(m.k * m.n for m in modules if m.bits)
    return sum(m.k * m.n * float(m.bits) for m in modules if m.bits) / total if total else 0.0


Parts = dict[str, tuple[Header, Entry]]


def group(checkpoint: Checkpoint) -> tuple[dict[str, Parts], list[Entry]]:
    """EXL3 linears (name to suffix to tensor) and the tensors that belong to none."""
    every = [(header, entry) for header in checkpoint.headers.values() for entry in header.tensors.values()]
    modules: dict[str, Parts] = {}
    for header, entry in every:
        stem, _, suffix = entry.name.rpartition(".")
        if suffix in _OWN and stem:
            modules.setdefault(stem, {})[suffix] = (header, entry)
    # A lone `su` or `sv` is some other model's tensor.
    modules = {stem: parts for stem, parts in modules.items() if set(parts) - {"su", "sv"}}
    native = []
    for header, entry in every:
        stem, _, suffix = entry.name.rpartition(".")
        if stem in modules and suffix in ("bias", "scale", "weight"):
            modules[stem][suffix] = (header, entry)
        elif stem not in modules or suffix not in _OWN:
            native.append(entry)
    return modules, native


def inspect(path: Path) -> Inspection:
    """Inspect a checkpoint folder or one safetensors file.

    Raises:
        SparkloomError: there is nothing that can be read at all.
    """
    checkpoint = load(path)
    if checkpoint.unreadable and not checkpoint.headers:
        raise next(iter(checkpoint.unreadable.values()))
    modules, native = group(checkpoint)
    result = Inspection(path, native=sorted(native, key=lambda e: e.name))
    for name, header in checkpoint.headers.items():
        result.files[name] = {"nbytes": header.file_size, "tensors": len(header.tensors)}
    result.findings += _files(checkpoint)
    alone = path.is_file()  # the other members of a linear may lie in other files
    for name in sorted(modules, key=natural):
        module, problems = check_module(name, modules[name], partial=alone)
        result.modules.append(module)
        result.findings += problems
    if not alone:
        result.findings += _configuration(checkpoint, result.modules)
    return result


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts layer 2 before layer 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _files(checkpoint: Checkpoint) -> Iterator[Finding]:
    for error in checkpoint.unreadable.values():
        yield from_error("exl3.header", error)
    for header in checkpoint.headers.values():
        if header.missing_bytes:
            yield from_error("exl3.truncated", truncated(header))
    for name, count in checkpoint.absent.items():
        yield fail(
            "exl3.index", f"{INDEX} names {name} ({count} tensors), which is not there", "fetch the file"
        )
    places: dict[str, str] = {}
    for file, header in checkpoint.headers.items():
        for name in header.tensors:
            if name in places:
                yield fail("exl3.index", f"{name} is in {places[name]} and in {file}", _REFETCH)
            places[name] = file
    if checkpoint.index is None:
        return
    for name, file in checkpoint.index.items():
        if file in checkpoint.headers and name not in checkpoint.headers[file].tensors:
            yield fail("exl3.index", f"{INDEX} says that {name} is in {file}, but it is not", _REFETCH)
    unlisted = [name for name in places if name not in checkpoint.index]
    if unlisted:
        yield warn(
            "exl3.index",
            f"{len(unlisted)} tensors are in no line of {INDEX}, so loaders may pass over them",
            "remove left-over files, or fetch the index again",
            "\n".join(unlisted[:5]),
        )


def _need(condition: bool, check: str, name: str, text: str) -> Iterator[Finding]:
    if not condition:
        yield fail(check, f"{name}: {text}", _REFETCH)


def check_module(name: str, parts: Parts, *, partial: bool = False) -> tuple[Module, list[Finding]]:
    """One linear's properties and everything that is wrong with it.

    Args:
        name: key without suffix.
        parts: suffix to tensor.
        partial: members may be missing (they lie in another file).
    """
    problems: list[Finding] = []
    entries = {suffix: entry for suffix, (_, entry) in parts.items()}
    bits: int | float | None = None
    k = n = 0
    if trellis := entries.get("trellis"):
        problems += _need(
            trellis.dtype in ("I16", "U16") and len(trellis.shape) == 3,
            "exl3.shape",
            f"{name}.trellis",
            f"must be int16 [k/16, n/16, 16 x bits], is {trellis.dtype} {list(trellis.shape)}",
        )
        if len(trellis.shape) == 3:
            k, n = trellis.shape[0] * TILE, trellis.shape[1] * TILE
            for axis, size in (("k", k), ("n", n)):
                problems += _need(
                    size % BLOCK == 0 and size > 0,
                    "exl3.shape",
                    f"{name}.trellis",
                    f"{axis} = {size} is no multiple of {BLOCK}",
                )
            try:
                bits = bits_of(trellis.shape[2])
            except SparkloomError:
                problems.append(
                    fail(
                        "exl3.shape", f"{name}.trellis: a width of {trellis.shape[2]} fits no rate", _REFETCH
                    )
                )
    elif not partial:
        problems.append(fail("exl3.member", f"{name}: the tensor .trellis is missing", _REFETCH))
    old = _scales(name, entries, k, n, problems, partial)
    codebook = _codebook(name, parts, problems, partial and "trellis" not in parts)
    if bits in HALF_RATES and codebook not in (None, "mul1"):
        problems.append(
            fail("exl3.marker", f"{name}: {bits} bits exist with mul1 alone, not {codebook}", _REFETCH)
        )
    if "scale" in parts:
        problems.append(
            fail("exl3.member", f"{name}: has a .scale, which this format must not have", _REFETCH)
        )
    if "weight" in parts:
        problems.append(fail("exl3.member", f"{name}: is there both native (.weight) and as EXL3", _REFETCH))
    module = Module(
        name=name,
        bits=bits,
        codebook=codebook,
        k=k,
        n=n,
        nbytes=sum(entry.nbytes for entry in entries.values()),
        bias="bias" in entries,
        old_signs=old,
        files=tuple(sorted({header.path.name for header, _ in parts.values()})),
    )
    return module, problems


def _scales(
    name: str, entries: dict[str, Entry], k: int, n: int, problems: list[Finding], partial: bool
) -> bool:
    """Check suh, svh (or the packed su, sv of old files) and bias; return whether old ones were found."""
    old = False
    dtypes: tuple[str, ...]
    for suffix, signs, size in (("suh", "su", k), ("svh", "sv", n)):
        if suffix in entries:
            found, dtypes, wanted = entries[suffix], ("F16",), (size,)
        elif signs in entries:
            found, dtypes, wanted, old = entries[signs], ("I16", "U16"), (size // 16,), True
        else:
            if not partial:
                problems.append(fail("exl3.member", f"{name}: the tensor .{suffix} is missing", _REFETCH))
            continue
        problems += _need(
            found.dtype in dtypes and (found.shape == wanted or (not size and len(found.shape) == 1)),
            "exl3.shape",
            found.name,
            f"must be {dtypes[0]} {list(wanted)}, is {found.dtype} {list(found.shape)}",
        )
    if bias := entries.get("bias"):
        problems += _need(
            bias.dtype in ("F16", "BF16", "F32") and (not n or math.prod(bias.shape) == n),
            "exl3.shape",
            bias.name,
            f"must have {n} values, is {bias.dtype} {list(bias.shape)}",
        )
    return old


def _codebook(name: str, parts: Parts, problems: list[Finding], unknown: bool) -> str | None:
    """Check the markers; return the codebook, or None if they leave it open."""
    found = [marker for marker in MARKERS if marker in parts]
    if len(found) > 1:
        problems.append(fail("exl3.marker", f"{name}: both markers .mcg and .mul1 are there", _REFETCH))
        return None
    for marker in found:
        header, entry = parts[marker]
        if entry.dtype not in ("I32", "U32") or math.prod(entry.shape) != 1:
            problems.append(
                fail(
                    "exl3.shape",
                    f"{entry.name}: must be an int32 scalar, is {entry.dtype} {list(entry.shape)}",
                    _REFETCH,
                )
            )
            continue
        raw = pread(header.path, header.data_start + entry.start, 4)
        value = int.from_bytes(raw, "little", signed=True)
        if len(raw) == 4 and value != marker_value(marker):
            problems.append(
                fail("exl3.marker", f"{entry.name}: must be {marker_value(marker)}, is {value}", _REFETCH)
            )
    return found[0] if found else None if unknown else "3inst"


def _configuration(checkpoint: Checkpoint, modules: list[Module]) -> Iterator[Finding]:
    if not checkpoint.config:
        yield warn("exl3.config", "there is no config.json beside the weights", "fetch config.json")
    said = declared(checkpoint.config)
    method = said.get("quant_method")
    if modules and checkpoint.config and method != "exl3":
        yield fail(
            "exl3.config",
            f"config.json: quantization_config.quant_method is {method!r}, but {len(modules)} are EXL3",
            'set "quantization_config": {"quant_method": "exl3", ...} in config.json',
        )
    eights = any(
        entry.dtype == "F8_E4M3"
        for header in checkpoint.headers.values()
        for entry in header.tensors.values()
    )
    whole = not checkpoint.absent and not checkpoint.unreadable
    if method == "exl3" and not modules and not eights and whole:
        yield fail(
            "exl3.config",
            "config.json says exl3, but no linear is EXL3 or FP8",
            "fetch the right weights, or remove quantization_config",
        )
    if method == "exl3" and modules:
        bits, codebook = said.get("bits"), said.get("codebook")
        average = _average_bits(modules)
        if isinstance(bits, int | float) and abs(bits - average) > 0.1:
            yield warn(
                "exl3.config", f"config.json says {bits:g} bits, the tensors have {average:.2f} on average"
            )
        if codebook is not None and all(m.codebook != codebook for m in modules):
            yield warn(
                "exl3.config", f"config.json says codebook {codebook!r}, no tensor has it (tensors decide)"
            )
    yield from _storage(checkpoint, modules)


def _storage(checkpoint: Checkpoint, modules: list[Module]) -> Iterator[Finding]:
    storage = checkpoint.quantization.get("tensor_storage")
    if not isinstance(storage, dict):
        return
    tensors = {
        name: entry for header in checkpoint.headers.values() for name, entry in header.tensors.items()
    }
    readable = not checkpoint.absent and not checkpoint.unreadable
    for key, value in storage.items():
        stored = value.get("stored_tensors") if isinstance(value, dict) else None
        if not isinstance(stored, dict):
            yield fail("exl3.storage", f"tensor_storage has no stored_tensors of {key}", _REFETCH)
            continue
        for name, promised in stored.items():
            entry = tensors.get(name)
            shape = promised.get("shape") if isinstance(promised, dict) else None
            if entry is None:
                if readable:
                    yield fail(
                        "exl3.storage",
                        f"tensor_storage lists {name} of {key}, which is not there",
                        _REFETCH,
                    )
            elif shape != list(entry.shape):
                yield fail(
                    "exl3.storage",
                    f"{name}: tensor_storage says {shape}, the file has {list(entry.shape)}",
                    _REFETCH,
                )
    unlisted = [m.name for m in modules if m.name not in storage]
    if unlisted:
        yield warn(
            "exl3.storage",
            f"{len(unlisted)} EXL3 linears are not in tensor_storage",
            detail="\n".join(unlisted[:5]),
        )

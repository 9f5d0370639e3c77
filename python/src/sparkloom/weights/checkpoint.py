"""Check a checkpoint before vLLM loads it: config, index and safetensors headers, never the data.

vLLM loads wrong or missing quantisation metadata silently: an index that omits a file makes it skip tensors,
a missing declaration makes it take another method.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.findings import Finding, fail, from_error, ok, warn
from sparkloom.weights.headers import TensorInfo, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MARKS = {"mcg": "mcg", "mul1": "mul1"}
PARTS = ("trellis", "suh", "svh")
HADAMARD = 128
_EXPERT = re.compile(r"(?P<group>.*\.experts)\.(?P<id>\d+)\.(?P<proj>\w+)$")
# Split of each projection under tensor parallelism: by output columns, or by input rows.
BY_ROW = frozenset({"down_proj", "o_proj", "w2"})
EXPERT_COUNT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")


@dataclass(frozen=True, slots=True)
class Tensors:
    """Every tensor of a checkpoint with the file that has it."""

    info: Mapping[str, TensorInfo]
    file: Mapping[str, str]


def check_checkpoint(folder: Path, *, world: int = 1, quantization: str = "exl3") -> list[Finding]:
    """Findings about a checkpoint folder; reads a few KiB per shard.

    Args:
        folder: config.json, the index and the shards.
        world: tensor-parallel size that it will be loaded with.
        quantization: `exl3` or `none`, what the cluster file says.
    """
    try:
        config = _json_object(folder / "config.json")
        weight_map = _weight_map(folder)
    except SparkloomError as error:
        return [from_error("checkpoint.files", error)]
    tensors, findings = _read_tensors(folder, weight_map)
    if any(f.level == "fail" and f.check == "checkpoint.shards" for f in findings):
        return findings
    findings += check_index(weight_map, tensors)
    findings += check_config(config, tensors, quantization)
    findings += check_exl3(tensors, world)
    findings += check_experts(config, tensors)
    if not findings:
        quantised = sum(name.endswith(".trellis") for name in tensors.info)
        files = len(set(tensors.file.values()))
        text = f"{len(tensors.info)} tensors in {files} files, {quantised} EXL3 matrices"
        findings = [ok("checkpoint", text)]
    return findings


def _json_object(path: Path) -> dict[str, Any]:
    mend = "fetch the file again (`sparkloom weights fetch`)"
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise SparkloomError(f"cannot read it: {error.strerror}", file=path, mend=mend) from None
    except (ValueError, RecursionError) as error:
        raise SparkloomError(f"it is no JSON: {error}", file=path, mend=mend) from None
    if not isinstance(value, dict):
        raise SparkloomError("it is no JSON object", file=path, mend=mend)
    return value


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name to file by the index; `None` for a checkpoint of one file without an index."""
    path = folder / INDEX
    if not path.exists() and (folder / SINGLE).exists():
        return None
    value = _json_object(path).get("weight_map")
    good = isinstance(value, dict) and all(isinstance(v, str) and "/" not in v for v in value.values())
    if not isinstance(value, dict) or not good or not value:
        mend = "fetch the index again (`sparkloom weights fetch`)"
        raise SparkloomError("the index has no usable weight_map", file=path, field="weight_map", mend=mend)
    return value


def _read_tensors(folder: Path, weight_map: dict[str, str] | None) -> tuple[Tensors, list[Finding]]:
    """Headers of every shard in the folder and of every shard that the index names."""
    names = {path.name for path in folder.glob("*.safetensors")} | set((weight_map or {}).values())
    info: dict[str, TensorInfo] = {}
    where: dict[str, str] = {}
    bad, twice = [], []
    for name in sorted(names):
        try:
            header = read_header(folder / name)
        except SparkloomError as error:
            bad.append(f"{name}: {error.summary}" + (f" ({error.field})" if error.field else ""))
            continue
        for tensor, found in header.tensors.items():
            if tensor in info:
                twice.append(f"{tensor}: {where[tensor]} and {name}")
            info[tensor], where[tensor] = found, name
    findings = []
    if bad:
        mend = "fetch these files again (`sparkloom weights fetch`)"
        findings.append(fail("checkpoint.shards", f"{len(bad)} shards cannot be used", mend, _lines(bad)))
    if twice:
        mend = "remove stale shards of another revision (`sparkloom weights fetch --prune`)"
        findings.append(
            fail("checkpoint.twice", f"{len(twice)} tensors are in two files", mend, _lines(twice))
        )
    return Tensors(info, where), findings


def check_index(weight_map: dict[str, str] | None, tensors: Tensors) -> list[Finding]:
    """The index and the files agree in both directions."""
    if weight_map is None:
        return []
    findings = []
    listed = set(weight_map.values())
    omitted = sorted(set(tensors.file.values()) - listed)
    mend = "get the index that belongs to these shards; vLLM skips what the index does not list"
    if omitted:
        findings.append(
            fail("checkpoint.index", f"the index omits {len(omitted)} files", mend, _lines(omitted))
        )
    unlisted = [n for n, f in tensors.file.items() if n not in weight_map and f not in omitted]
    if unlisted:
        text = f"the index omits {len(unlisted)} tensors of files that it lists"
        findings.append(fail("checkpoint.index", text, mend, _lines(unlisted)))
    absent = [f"{n} ({f})" for n, f in weight_map.items() if tensors.file.get(n) != f]
    if absent:
        text = f"{len(absent)} tensors are not in the file that the index says"
        findings.append(fail("checkpoint.index", text, mend, _lines(absent)))
    return findings


def quantization_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `quantization_config` at the top or in `text_config`."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        found = place.get("quantization_config")
        if isinstance(found, dict):
            return found
    return None


def check_config(config: Mapping[str, Any], tensors: Tensors, quantization: str) -> list[Finding]:
    """config.json declares what the files hold."""
    declared = quantization_of(config)
    method = declared.get("quant_method") if declared else None
    packed = any(name.endswith(".trellis") for name in tensors.info)
    mend = "use the config.json that belongs to this checkpoint"
    if quantization == "exl3" and method != "exl3":
        text = f"config.json declares quant_method {method!r}, the cluster file wants exl3"
        return [fail("checkpoint.method", text, f"{mend}, or set model.quantization to none")]
    if packed and method != "exl3":
        text = f"the files hold EXL3 tensors, config.json declares quant_method {method!r}"
        return [fail("checkpoint.method", text, mend)]
    if method == "exl3" and not packed:
        return [fail("checkpoint.method", "config.json declares exl3, no file holds an EXL3 tensor", mend)]
    if not packed or declared is None:
        return []
    findings = []
    book = declared.get("codebook")
    marks = {_codebook(tensors, prefix) for prefix in exl3_prefixes(tensors)}
    if isinstance(book, str) and marks - {book}:
        text = f"config.json declares codebook {book!r}, tensors have {', '.join(sorted(marks - {book}))}"
        findings.append(fail("checkpoint.codebook", text, mend))
    bits = declared.get("bits")
    widths = {
        tensors.info[f"{p}.trellis"].shape[-1] // 16
        for p in exl3_prefixes(tensors)
        if _is_trellis(tensors, p)
    }
    if isinstance(bits, int) and len(widths) == 1 and bits not in widths:
        text = f"config.json declares {bits} bits, tensors have {widths.pop()}"
        findings.append(fail("checkpoint.bits", text, mend))
    return findings


def exl3_prefixes(tensors: Tensors) -> list[str]:
    """Names of all matrices of which at least one EXL3 tensor is there."""
    suffixes = (*PARTS, *MARKS)
    found = {n.rpartition(".")[0] for n in tensors.info if n.rpartition(".")[2] in suffixes}
    return sorted(found)


def _codebook(tensors: Tensors, prefix: str) -> str:
    return next((mark for mark in MARKS if f"{prefix}.{mark}" in tensors.info), "3inst")


def _is_trellis(tensors: Tensors, prefix: str) -> bool:
    info = tensors.info.get(f"{prefix}.trellis")
    return info is not None and len(info.shape) == 3


def check_exl3(tensors: Tensors, world: int) -> list[Finding]:
    """Each matrix is whole, of the right types and shapes, and can be split over `world` ranks."""
    incomplete, wrong, unsplit = [], [], []
    books: dict[str, list[str]] = defaultdict(list)
    prefixes = exl3_prefixes(tensors)
    for prefix in prefixes:
        missing = [part for part in PARTS if f"{prefix}.{part}" not in tensors.info]
        if missing:
            incomplete.append(f"{prefix}: no {', '.join(missing)}")
            continue
        books[_codebook(tensors, prefix)].append(prefix)
        problem = _shape_problem(tensors, prefix)
        if problem:
            wrong.append(f"{prefix}: {problem}")
        elif problem := _split_problem(tensors, prefix, world):
            unsplit.append(f"{prefix}: {problem}")
    mend = "get the checkpoint again from its pinned revision; do not load it"
    findings = []
    if incomplete:
        text = f"{len(incomplete)} of {len(prefixes)} EXL3 matrices are incomplete"
        findings.append(fail("checkpoint.exl3", text, mend, _lines(incomplete)))
    if wrong:
        text = f"{len(wrong)} of {len(prefixes)} EXL3 matrices have wrong shapes or types"
        findings.append(fail("checkpoint.exl3", text, mend, _lines(wrong)))
    if unsplit:
        text = f"{len(unsplit)} EXL3 matrices cannot be split over {world} ranks"
        split_mend = f"use a number of nodes that divides the model in blocks of {HADAMARD}"
        findings.append(fail("checkpoint.split", text, split_mend, _lines(unsplit)))
    if len(books) > 1:
        rare = min(books.values(), key=len)
        mix = ", ".join(f"{name} ({len(found)})" for name, found in sorted(books.items()))
        text = f"the checkpoint mixes codebooks: {mix}"
        findings.append(fail("checkpoint.codebook", text, mend, _lines(rare)))
    return findings


def _shape_problem(tensors: Tensors, prefix: str) -> str | None:
    trellis, suh, svh = (tensors.info[f"{prefix}.{part}"] for part in PARTS)
    if trellis.dtype not in ("I16", "U16"):
        return f"trellis is {trellis.dtype}, int16 is expected"
    if len(trellis.shape) != 3 or trellis.shape[2] % 16 or not 1 <= trellis.shape[2] // 16 <= 8:
        return f"trellis has shape {list(trellis.shape)}, [k/16, n/16, 16 x bits] is expected"
    k, n = trellis.shape[0] * 16, trellis.shape[1] * 16
    for name, info, length in (("suh", suh, k), ("svh", svh, n)):
        if info.dtype != "F16":
            return f"{name} is {info.dtype}, float16 is expected"
        if info.shape != (length,):
            return f"{name} has shape {list(info.shape)}, [{length}] is expected"
    for mark in MARKS:
        scalar = tensors.info.get(f"{prefix}.{mark}")
        if scalar is not None and (scalar.dtype not in ("I32", "U32") or scalar.shape not in ((), (1,))):
            return f"{mark} is {scalar.dtype} {list(scalar.shape)}, an int32 scalar is expected"
    if all(f"{prefix}.{mark}" in tensors.info for mark in MARKS):
        return "it has the marks of two codebooks"
    bias = tensors.info.get(f"{prefix}.bias")
    if bias is not None and bias.shape != (n,):
        return f"bias has shape {list(bias.shape)}, [{n}] is expected"
    if k % HADAMARD or n % HADAMARD:
        return f"{k} x {n} is not a multiple of {HADAMARD} in both directions"
    return None


def _split_problem(tensors: Tensors, prefix: str, world: int) -> str | None:
    shape = tensors.info[f"{prefix}.trellis"].shape
    by_row = prefix.rpartition(".")[2] in BY_ROW
    extent = shape[0 if by_row else 1] * 16
    if world > 1 and extent % (HADAMARD * world):
        return f"{'input' if by_row else 'output'} size {extent} over {world} is no multiple of {HADAMARD}"
    return None


def check_experts(config: Mapping[str, Any], tensors: Tensors) -> list[Finding]:
    """Every layer has all its experts, each with the same matrices."""
    groups: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in tensors.info:
        match = _EXPERT.match(name.rpartition(".")[0])
        if match:
            groups[match["group"]][int(match["id"])].add(match["proj"])
    count = _expert_count(config)
    lacking = []
    for group, experts in sorted(groups.items()):
        total = count or max(experts) + 1
        every: set[str] = set().union(*experts.values())
        absent = [i for i in range(total) if i not in experts]
        if absent:
            lacking.append(f"{group}: no expert {_ranges(absent)} of {total}")
        lacking += [
            f"{group}.{i}: no {', '.join(sorted(every - have))}"
            for i, have in sorted(experts.items())
            if every - have
        ]
        beyond = [i for i in experts if i >= total]
        if beyond:
            lacking.append(f"{group}: experts {_ranges(sorted(beyond))} beyond the declared {total}")
    if lacking:
        mend = "get the checkpoint again from its pinned revision; do not load it"
        return [
            fail(
                "checkpoint.experts",
                f"experts are incomplete in {len(lacking)} places",
                mend,
                _lines(lacking),
            )
        ]
    if count and not groups and any(".experts." in name for name in tensors.info):
        return [warn("checkpoint.experts", "experts are stored in a form that is not checked here", "")]
    return []


def _expert_count(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    for place in (text if isinstance(text, dict) else {}, config):
        for key in EXPERT_COUNT_KEYS:
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 100_000:
                return value
    return None


def _ranges(numbers: list[int]) -> str:
    """`0-3, 7` from sorted numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _lines(items: Iterable[str], limit: int = 40) -> str:
    found = list(items)
    more = [f"... and {len(found) - limit} more"] if len(found) > limit else []
    return "\n".join([*found[:limit], *more])

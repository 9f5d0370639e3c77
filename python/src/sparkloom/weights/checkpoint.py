"""Check a checkpoint before vLLM loads it: config, index and safetensors headers, never the data.

vLLM loads wrong or missing quantisation metadata silently: an index that omits a file makes it skip tensors,
a missing declaration makes it take another method. What one EXL3 matrix must be like is `sparkloom.exl3`'s
knowledge; here is what a whole checkpoint must be like, and whether it can be split over the ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.exl3.checkpoint import CONFIG, INDEX, Checkpoint, declared, load, read_json
from sparkloom.exl3.headers import Header, read_header, truncated
from sparkloom.exl3.inspect import Module, check_module, group
from sparkloom.exl3.rates import BLOCK
from sparkloom.findings import Finding, Level, fail, from_error, ok, warn

_EXPERT = re.compile(r"(?P<group>.*\.experts)\.(?P<id>\d{1,6})\.(?P<proj>\w+)$")
# Under tensor parallelism these are split by input rows, all others by output columns.
BY_ROW = frozenset({"down_proj", "o_proj", "w2"})
EXPERT_COUNT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
_MEND = "get the checkpoint again from its pinned revision; do not load it"
_FETCH = "fetch these files again (`sparkloom weights fetch`)"


def check_checkpoint(folder: Path, *, world: int = 1, quantization: str = "exl3") -> list[Finding]:
    """Findings about a checkpoint folder; reads a few KiB per shard.

    Args:
        folder: config.json, the index and the shards.
        world: tensor-parallel size that it will be loaded with.
        quantization: `exl3` or `none`, what the cluster file says.
    """
    try:
        checkpoint = load(folder)
        config = read_json(folder / CONFIG)
    except SparkloomError as error:
        return [from_error("checkpoint.files", error)]
    except RecursionError:
        return [fail("checkpoint.files", "a JSON file is nested too deeply", _FETCH, f"file: {folder}")]
    damaged = _shards(checkpoint)
    if damaged:
        return damaged
    parts, _ = group(checkpoint)
    checked = [check_module(name, found) for name, found in sorted(parts.items())]
    modules = [module for module, _ in checked]
    names = [name for header in checkpoint.headers.values() for name in header.tensors]
    findings = [
        *check_index(checkpoint),
        *check_declaration(config, modules, quantization),
        *_matrices([problem for _, problems in checked for problem in problems], len(modules)),
        *check_split(modules, world),
        *check_experts(config, names),
    ]
    if not findings:
        text = f"{len(names)} tensors in {len(checkpoint.headers)} files, {len(modules)} EXL3 matrices"
        findings = [ok("checkpoint", text)]
    return findings


def shard_problem(path: Path) -> str | None:
    """What is wrong with one safetensors file as a whole: header, order of the tensors, length."""
    try:
        header = read_header(path, whole=False)
    except SparkloomError as error:
        return error.summary + (f" ({error.field})" if error.field else "")
    except RecursionError:
        return "its header is nested too deeply"
    return _layout_problem(header)


def _layout_problem(header: Header) -> str | None:
    if header.missing_bytes:
        return truncated(header).summary
    end = 0
    for entry in sorted(header.tensors.values(), key=lambda t: (t.start, t.end)):
        if entry.start != end:
            return f"the tensors overlap or leave a gap at {entry.name}"
        end = entry.end
    surplus = header.file_size - header.data_start - end
    return f"the file is {surplus} bytes too long for its header" if surplus else None


def _shards(checkpoint: Checkpoint) -> list[Finding]:
    bad = [f"{name}: {error.summary}" for name, error in checkpoint.unreadable.items()]
    bad += [
        f"{name}: not there, the index names {count} tensors" for name, count in checkpoint.absent.items()
    ]
    bad += [f"{n}: {text}" for n, header in checkpoint.headers.items() if (text := _layout_problem(header))]
    return (
        [fail("checkpoint.shards", f"{len(bad)} shards cannot be used", _FETCH, _lines(bad))] if bad else []
    )


def check_index(checkpoint: Checkpoint) -> list[Finding]:
    """No tensor is there twice, and the index and the files agree in both directions."""
    where: dict[str, str] = {}
    twice = []
    for file, header in checkpoint.headers.items():
        for name in header.tensors:
            if name in where:
                twice.append(f"{name}: {where[name]} and {file}")
            where[name] = file
    findings = []
    if twice:
        mend = "remove stale shards of another revision (`sparkloom weights fetch --prune`)"
        findings.append(
            fail("checkpoint.twice", f"{len(twice)} tensors are in two files", mend, _lines(twice))
        )
    mend = "get the index that belongs to these shards; vLLM skips what the index does not list"
    if checkpoint.index is None:
        if len(checkpoint.headers) > 1:
            files = _lines(checkpoint.headers)
            text = f"{len(checkpoint.headers)} shards and no {INDEX}"
            findings.append(fail("checkpoint.index", text, mend, files))
        return findings
    omitted = sorted(set(checkpoint.headers) - set(checkpoint.index.values()))
    if omitted:
        findings.append(
            fail("checkpoint.index", f"the index omits {len(omitted)} files", mend, _lines(omitted))
        )
    unlisted = [n for n, f in where.items() if n not in checkpoint.index and f not in omitted]
    if unlisted:
        text = f"the index omits {len(unlisted)} tensors of files that it lists"
        findings.append(fail("checkpoint.index", text, mend, _lines(unlisted)))
    absent = [f"{n} ({f})" for n, f in checkpoint.index.items() if n not in checkpoint.headers[f].tensors]
    if absent:
        text = f"{len(absent)} tensors are not in the file that the index says"
        findings.append(fail("checkpoint.index", text, mend, _lines(absent)))
    return findings


def check_declaration(config: Mapping[str, Any], modules: list[Module], quantization: str) -> list[Finding]:
    """config.json declares what the files hold, and the cluster file means the same."""
    said = declared(config)
    method = said.get("quant_method")
    mend = "use the config.json that belongs to this checkpoint"
    if quantization == "exl3" and method != "exl3":
        text = f"config.json declares quant_method {method!r}, the cluster file wants exl3"
        return [fail("checkpoint.method", text, f"{mend}, or set model.quantization to none")]
    if modules and method != "exl3":
        text = f"the files hold EXL3 tensors, config.json declares quant_method {method!r}"
        return [fail("checkpoint.method", text, mend)]
    if method == "exl3" and not modules:
        return [fail("checkpoint.method", "config.json declares exl3, no file holds an EXL3 tensor", mend)]
    if not modules:
        return []
    findings = []
    books: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        books[module.codebook or "unclear"].append(module.name)
    book = said.get("codebook")
    others = sorted(set(books) - {book})
    if isinstance(book, str) and others:
        text = f"config.json declares codebook {book!r}, tensors have {', '.join(others)}"
        lines = _lines(name for other in others for name in books[other])
        findings.append(fail("checkpoint.codebook", text, mend, lines))
    elif len(books) > 1:
        mix = ", ".join(f"{name} ({len(found)})" for name, found in sorted(books.items()))
        rare = _lines(min((len(found), found) for found in books.values())[1])
        findings.append(fail("checkpoint.codebook", f"the checkpoint mixes codebooks: {mix}", _MEND, rare))
    bits, rates = said.get("bits"), {module.bits for module in modules if module.bits}
    if isinstance(bits, int) and len(rates) == 1 and bits not in rates:
        text = f"config.json declares {bits} bits, tensors have {next(iter(rates)):g}"
        findings.append(fail("checkpoint.bits", text, mend))
    return findings


def _matrices(problems: list[Finding], count: int) -> list[Finding]:
    """One finding per level for all problems of single matrices."""
    findings = []
    for level, make in ((Level.fail, fail), (Level.warn, warn)):
        lines = [problem.summary for problem in problems if problem.level is level]
        if lines:
            text = f"{len(lines)} problems in {count} EXL3 matrices"
            findings.append(make("checkpoint.exl3", text, _MEND, _lines(lines)))
    return findings


def check_split(modules: Iterable[Module], world: int) -> list[Finding]:
    """Every matrix can be cut over the ranks in blocks of the Hadamard size."""
    lines = []
    for module in modules:
        by_row = module.name.rpartition(".")[2] in BY_ROW
        extent = module.k if by_row else module.n
        if world > 1 and extent % (BLOCK * world):
            side = "input" if by_row else "output"
            lines.append(f"{module.name}: {side} size {extent} over {world} is no multiple of {BLOCK}")
    if not lines:
        return []
    mend = f"use a number of nodes that divides the model in blocks of {BLOCK}"
    text = f"{len(lines)} EXL3 matrices cannot be split over {world} ranks"
    return [fail("checkpoint.split", text, mend, _lines(lines))]


def check_experts(config: Mapping[str, Any], names: Iterable[str]) -> list[Finding]:
    """Every layer has all its experts, each with the same matrices."""
    groups: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in names:
        match = _EXPERT.match(name.rpartition(".")[0])
        if match:
            groups[match["group"]][int(match["id"])].add(match["proj"])
    count = _expert_count(config)
    lacking = []
    for where, experts in sorted(groups.items()):
        total = count or max(experts) + 1
        every: set[str] = set().union(*experts.values())
        absent = [i for i in range(total) if i not in experts]
        if absent:
            lacking.append(f"{where}: no expert {_ranges(absent)} of {total}")
        for i, have in sorted(experts.items()):
            if every - have:
                lacking.append(f"{where}.{i}: no {', '.join(sorted(every - have))}")
        beyond = sorted(i for i in experts if i >= total)
        if beyond:
            lacking.append(f"{where}: experts {_ranges(beyond)} beyond the declared {total}")
    if lacking:
        text = f"experts are incomplete in {len(lacking)} places"
        return [fail("checkpoint.experts", text, _MEND, _lines(lacking))]
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

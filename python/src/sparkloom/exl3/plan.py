"""What `quantize` will do, decided from headers alone: which matrices, at which rate, in which order.

The plan is a pure function of the source's headers and the options. Its digest tells a resumed run whether
it goes on with the same work.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkloom.errors import Exit, SparkloomError
from sparkloom.exl3 import fp8
from sparkloom.exl3.checkpoint import Checkpoint, declared
from sparkloom.exl3.codebooks import MARKERS
from sparkloom.exl3.headers import DTYPE_BITS, FLOATS, Entry, Header, truncated
from sparkloom.exl3.inspect import Parts, check_module, group, natural
from sparkloom.exl3.options import Options
from sparkloom.exl3.rates import BLOCK, TILE, TILE_SIZE, words_of

PAIRS = (("gate_proj", "up_proj"), ("w1", "w3"))
"""Projections that read the same input. They get the same suh, which kernels then apply once for both."""

FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Experts stacked in one tensor [experts, outputs, inputs], and the linears that their rows hold."""


@dataclass(frozen=True)
class Target:
    """One linear to encode.

    Attributes:
        key: its name without suffix.
        source: tensor that holds it as [n, k] (torch's order).
        offset: first element of it in `source`.
        k, n, bits: inputs, outputs, rate.
        bias: tensor of its bias, or None.
        fp8: kind of its scales if it becomes FP8, else None.
    """

    key: str
    source: str
    offset: int
    k: int
    n: int
    bits: int | float
    bias: str | None = None
    fp8: str | None = None

    @property
    def tiles(self) -> int:
        """Number of tiles to search; an FP8 matrix has none."""
        return 0 if self.fp8 else self.k * self.n // TILE_SIZE

    def stored(self, codebook: str) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, type and shape of its tensors, in the order of the file."""
        if self.fp8:
            scale = fp8.scale_shape(self.n, self.k, self.fp8)
            return [
                (f"{self.key}.weight", "F8_E4M3", (self.n, self.k)),
                (f"{self.key}.{fp8.SUFFIX[self.fp8]}", "F32", scale),
            ]
        rows: list[tuple[str, str, tuple[int, ...]]] = [
            (f"{self.key}.trellis", "I16", (self.k // TILE, self.n // TILE, words_of(self.bits))),
            (f"{self.key}.suh", "F16", (self.k,)),
            (f"{self.key}.svh", "F16", (self.n,)),
        ]
        if codebook in MARKERS:
            rows.append((f"{self.key}.{codebook}", "I32", ()))
        if self.bias:
            rows.append((f"{self.key}.bias", "F16", (self.n,)))
        return rows


@dataclass(frozen=True)
class Unit:
    """A step of work that is done as a whole: linears that share suh, or one tensor to copy.

    Attributes:
        targets: linears to encode; one, or two with the same inputs.
        copy: name of a tensor to copy as it is.
        signs: (source, new name): packed signs of an old file, to be written as scales.
    """

    targets: tuple[Target, ...] = ()
    copy: str | None = None
    signs: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """What to call it."""
        return self.targets[0].key if self.targets else self.copy or (self.signs or ("",))[0]


@dataclass
class Shard:
    """One file to write, of the same name as its source."""

    name: str
    units: list[Unit] = field(default_factory=list)
    layout: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return sum(math.prod(shape) * DTYPE_BITS[dtype] // 8 for _, dtype, shape in self.layout)

    @property
    def tiles(self) -> int:
        """Tiles to encode."""
        return sum(target.tiles for unit in self.units for target in unit.targets)


@dataclass
class Plan:
    """All of the work.

    Attributes:
        shards: the files.
        skipped: matrices that fit the patterns but stay native, with the reason.
        existing: name to (bits, weights, codebook) of linears that are EXL3 in the source already.
        digest: of source headers and options.
    """

    shards: list[Shard]
    skipped: dict[str, str]
    existing: dict[str, tuple[int | float, int, str]]
    digest: str

    @property
    def trellises(self) -> list[Target]:
        """The linears that become EXL3."""
        return [target for target in self.targets if not target.fp8]

    @property
    def targets(self) -> list[Target]:
        """Every linear to encode."""
        return [target for shard in self.shards for unit in shard.units for target in unit.targets]

    def as_dict(self, options: Options) -> dict[str, Any]:
        """The JSON object of `--dry-run --format json`."""
        return {
            "options": options.as_dict(),
            "linears": [asdict(target) for target in self.targets],
            "skipped": self.skipped,
            "existing": len(self.existing),
            "tiles": sum(shard.tiles for shard in self.shards),
            "files": [{"name": shard.name, "nbytes": shard.nbytes} for shard in self.shards],
        }


def make_plan(checkpoint: Checkpoint, options: Options) -> Plan:
    """Decide what to do with a checkpoint.

    Raises:
        SparkloomError: a damaged or foreign source, patterns that fit nothing, sizes that cannot be encoded.
    """
    _check_source(checkpoint)
    modules, _ = group(checkpoint)
    chosen: dict[str, list[Target]] = {}
    skipped: dict[str, str] = {}
    odd: list[str] = []
    matched = 0
    tensors = {
        name: entry for header in checkpoint.headers.values() for name, entry in header.tensors.items()
    }
    for name in sorted(tensors, key=natural):
        stem, _, suffix = name.rpartition(".")
        if stem in modules or not options.chooses(name):
            continue
        entry = tensors[name]
        reason = _unfit(entry)
        if reason is not None:
            if suffix == "weight" and len(entry.shape) > 1:
                skipped[name] = reason
            continue
        matched += 1
        targets = _targets(entry, tensors, options)
        uneven = [f"{t.key} [{t.n}, {t.k}]" for t in targets if not t.fp8 and (t.k % BLOCK or t.n % BLOCK)]
        if uneven:
            odd += uneven
            skipped[name] = f"{list(entry.shape)} is not a multiple of {BLOCK} in both dimensions"
        else:
            chosen[name] = targets
    if odd and not options.skip_odd:
        raise SparkloomError(
            f"{len(odd)} chosen matrices have sizes that are no multiples of {BLOCK} ([outputs, inputs])",
            file=checkpoint.root,
            field=odd[0].split(" ")[0],
            mend="leave them native with --skip-odd, or take them out with --exclude",
            detail="\n".join(odd[:10] + [f"and {len(odd) - 10} more"] * (len(odd) > 10)),
        )
    if not chosen:
        raise SparkloomError(
            "no matrix fits the patterns",
            file=checkpoint.root,
            field="--include",
            value=" ".join(options.include),
            mend="patterns fit whole tensor names; quote them: --include '*.mlp.*_proj.weight'",
            detail="\n".join(
                f"{matched} matched" if matched else n for n in sorted(tensors, key=natural)[:8]
            ),
            code=Exit.USAGE,
        )
    shards = [_shard(header, chosen, modules, options) for header in checkpoint.headers.values()]
    _check_names(checkpoint, shards)
    return Plan(shards, skipped, _existing(modules), _digest(checkpoint, options))


def _check_source(checkpoint: Checkpoint) -> None:
    for error in checkpoint.unreadable.values():
        raise error
    for header in checkpoint.headers.values():
        if header.missing_bytes:
            raise truncated(header)
    for name in checkpoint.absent:
        raise SparkloomError(
            "the index names a file that is not there",
            file=checkpoint.root / name,
            mend="fetch the missing file",
        )
    method = declared(checkpoint.config).get("quant_method")
    if method not in (None, "exl3"):
        raise SparkloomError(
            "the source is quantized already, by another method",
            file=checkpoint.root / "config.json",
            field="quantization_config.quant_method",
            value=method,
            mend="start from the bf16 weights",
        )


def _unfit(entry: Entry) -> str | None:
    """Why a tensor cannot be a linear's weight, or None."""
    bare = entry.name.removesuffix(".weight").rpartition(".")[2]
    if len(entry.shape) == 3 and bare in FUSED:
        rows = entry.shape[1]
        if rows % len(FUSED[bare]):
            return f"{list(entry.shape)} does not split into {' and '.join(FUSED[bare])}"
    elif not entry.name.endswith(".weight"):
        return "it is no .weight"
    elif len(entry.shape) != 2:
        return f"{list(entry.shape)} is no matrix"
    if entry.dtype not in FLOATS:
        return f"its type {entry.dtype} is none of {', '.join(FLOATS)}"
    if not math.prod(entry.shape):
        return f"{list(entry.shape)} is empty"
    return None


def _targets(entry: Entry, tensors: Mapping[str, Entry], options: Options) -> list[Target]:
    """The linears that a tensor holds: one, or those of all experts of a stacked tensor."""
    stem = entry.name.removesuffix(".weight")
    if options.is_fp8(entry.name):
        if ".experts." in entry.name or len(entry.shape) != 2:
            raise SparkloomError(
                "routed experts are not stored as FP8",
                field=entry.name,
                mend="narrow --fp8 to dense matrices, or --exclude '*.experts.*'",
                code=Exit.USAGE,
            )
        n, k = entry.shape
        return [Target(stem, entry.name, 0, k, n, 8, fp8=options.fp8_scales)]
    if len(entry.shape) == 2:
        n, k = entry.shape
        bias = f"{stem}.bias" if f"{stem}.bias" in tensors else None
        return [Target(stem, entry.name, 0, k, n, options.bits_of(entry.name), bias)]
    parent, _, bare = stem.rpartition(".")
    experts, rows, k = entry.shape
    parts = FUSED[bare]
    n = rows // len(parts)
    return [
        Target(
            key := f"{parent}.{expert}.{part}",
            entry.name,
            (expert * rows + place * n) * k,
            k,
            n,
            options.bits_of(key),
        )
        for expert in range(experts)
        for place, part in enumerate(parts)
    ]


def _shard(
    header: Header, chosen: Mapping[str, list[Target]], modules: Mapping[str, Parts], options: Options
) -> Shard:
    shard = Shard(header.path.name)
    here = {t.key: t for name in header.tensors for t in chosen.get(name, [])}
    biases = {t.bias for t in here.values()}
    taken: set[str] = set()
    for name in sorted(header.tensors, key=natural):
        entry = header.tensors[name]
        stem, _, suffix = name.rpartition(".")
        if name in chosen:
            for target in chosen[name]:
                if target.key in taken:
                    continue
                unit = Unit(targets=(target, *_partner(target, here, taken, options)))
                taken.update(t.key for t in unit.targets)
                shard.units.append(unit)
                shard.layout += [row for t in unit.targets for row in t.stored(options.codebook)]
        elif stem in modules and suffix in ("su", "sv"):
            new = f"{stem}.{suffix}h"
            shard.units.append(Unit(signs=(name, new)))
            shard.layout.append((new, "F16", (entry.shape[0] * 16,)))
        elif name not in biases:
            shard.units.append(Unit(copy=name))
            shard.layout.append((name, entry.dtype, entry.shape))
    return shard


def _partner(
    target: Target, here: Mapping[str, Target], taken: set[str], options: Options
) -> tuple[Target, ...]:
    """The other linear of a pair with the same inputs, if it is in the same file and not done yet."""
    parent, _, bare = target.key.rpartition(".")
    for pair in PAIRS if options.share_suh else ():
        if bare in pair:
            other = here.get(f"{parent}.{pair[1 - pair.index(bare)]}")
            if other is None or other.key in taken or target.fp8 or other.fp8:
                continue
            if (other.k, other.bits) == (target.k, target.bits):
                return (other,)
    return ()


def _check_names(checkpoint: Checkpoint, shards: list[Shard]) -> None:
    """No two tensors of the result may have one name, nor may a bias lie in another file than its weight."""
    seen: set[str] = set()
    for shard in shards:
        for name, _, _ in shard.layout:
            if name in seen:
                raise SparkloomError("the result would hold this tensor twice", file=shard.name, field=name)
            seen.add(name)
        for unit in shard.units:
            for target in unit.targets:
                header = checkpoint.headers[shard.name]
                if target.bias and target.bias not in header.tensors:
                    raise SparkloomError(
                        "a bias lies in another file than its weight",
                        file=header.path,
                        field=target.bias,
                        mend="take this linear out with --exclude",
                    )


def _existing(modules: Mapping[str, Parts]) -> dict[str, tuple[int | float, int, str]]:
    found = {}
    for name, parts in modules.items():
        module, problems = check_module(name, parts)
        if problems or module.bits is None or module.codebook is None:
            raise SparkloomError(
                f"an EXL3 linear of the source is damaged: {problems[0].summary}",
                field=name,
                mend="see `sparkloom exl3 inspect`, and fetch the source again",
            )
        found[name] = (module.bits, module.k * module.n, module.codebook)
    return found


def _digest(checkpoint: Checkpoint, options: Options) -> str:
    """Of everything that decides the result: options and the headers and sizes of the source."""
    source = {
        name: [
            header.file_size,
            [(e.name, e.dtype, e.shape, e.start, e.end) for e in header.tensors.values()],
        ]
        for name, header in sorted(checkpoint.headers.items())
    }
    raw = json.dumps([options.as_dict(), source], sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()

"""What a checkpoint holds, read from the headers of its safetensors files: which modules are EXL3, which
native.

The files decide, not the configuration: a module is EXL3 if it has a tensor `NAME.trellis`, its rate is the
trellis's width / 16, its codebook the marker beside it (`.mcg`, `.mul1`, none = 3inst). Only where no file
can be read yet (a hub name that is still to be downloaded) does `quantization_config` decide; see
`declared`.

No torch, no vLLM here. Experts are folded: `...experts.7.gate_proj` is kept under `...experts.*.gate_proj`,
so the inventory of a model with 36,000 EXL3 matrices stays small enough to travel to every worker.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.vllm import fp8_headers
from sparkloom.vllm.fp8_headers import Fp8Module

CODEBOOKS = ("3inst", "mcg", "mul1")
MARKERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
RATES = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
SUFFIXES = ("trellis", "suh", "svh", "mcg", "mul1", "su", "sv", "scale")
MAX_HEADER = 100 << 20

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_LAYERS = re.compile(r"(?:^|\.)(layers\.\d+\..*)$")
_TOWER = re.compile(r"(?:^|\.)(visual|vision|audio)\w*\.")


@dataclass(frozen=True)
class Module:
    """One EXL3 matrix (for experts: all of one projection in one layer, which must agree).

    Args:
        name: its name in the checkpoint, an expert's number replaced by `*`.
        bits: bits per weight.
        codebook: "3inst", "mcg" or "mul1".
        k, n: input and output features, whole (before tensor parallelism).
        experts: how many experts have it; 0 for a dense matrix.
    """

    name: str
    bits: float
    codebook: str
    k: int
    n: int
    experts: int = 0


def header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes of one safetensors file, and whether the file is whole.

    Raises:
        SparkloomError: missing, not safetensors, or shorter than its header says.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise SparkloomError(
                    "not a whole safetensors file",
                    file=path,
                    mend="fetch this file again",
                    value=f"{size} bytes",
                )
            table = json.loads(file.read(length))
    except OSError as error:
        raise SparkloomError(
            f"cannot read a weight file: {error.strerror}", file=path, mend="fetch the missing file again"
        ) from error
    except ValueError as error:
        raise SparkloomError(
            "the header of a weight file is damaged", file=path, mend="fetch this file again"
        ) from error
    try:
        table.pop("__metadata__", None)
        end = 8 + length + max((entry["data_offsets"][1] for entry in table.values()), default=0)
        found = {name: (str(entry["dtype"]), tuple(entry["shape"])) for name, entry in table.items()}
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise SparkloomError(
            "the header of a weight file is damaged", file=path, mend="fetch this file again"
        ) from error
    if size < end:
        raise SparkloomError(
            f"a weight file is truncated: {end - size} of {end} bytes are missing",
            file=path,
            mend="fetch this file again",
        )
    return found


def files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint: those of the shard index, else every `*.safetensors`.

    Raises:
        SparkloomError: the index is damaged or names a file that is not there.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise SparkloomError(
            "the shard index is damaged", file=index, mend="fetch this file again"
        ) from error
    for shard in shards:
        if not (folder / shard).is_file():
            raise SparkloomError(
                f"a shard that the index names is missing: {shard}",
                file=index,
                field="weight_map",
                value=shard,
                mend="fetch the missing file again",
            )
    return [folder / shard for shard in shards]


def fold(name: str) -> str:
    """`a.experts.7.b` -> `a.experts.*.b`."""
    return _EXPERT.sub(".experts.*.", name)


def tail(name: str) -> str:
    """The part of a module's name that both the checkpoint and vLLM use: from `layers.N.` on.

    A vision or audio tower keeps its kind in front, so that its layers are not taken for the text's.
    """
    name = name.replace(".routed_experts", "").replace(".mtp_block.", ".")
    tower, found = _TOWER.search(name), _LAYERS.search(name)
    rest = found[1] if found else name.rpartition("language_model.")[2].removeprefix("model.")
    return f"{tower[1]}:{rest}" if tower else rest


@dataclass
class Inventory:
    """The EXL3 modules of a checkpoint, and the native ones where both kinds meet.

    Args:
        source: where this comes from, for messages.
        modules: folded name -> EXL3 module.
        native: folded names of modules that have a plain `.weight`.
        declared: no file was read; `everywhere` stands for every routed expert.
        fp8: name -> dense FP8 matrix.
    """

    source: str
    modules: dict[str, Module] = field(default_factory=dict)
    native: frozenset[str] = frozenset()
    everywhere: tuple[float, str] | None = None
    fp8: dict[str, Fp8Module] = field(default_factory=dict)
    _tails: dict[str, Module | Fp8Module] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, module in (self.modules | self.fp8).items():
            key = tail(name)
            if key in self._tails:
                raise SparkloomError(
                    f"two modules end in the same name: {self._tails[key].name} and {name}",
                    file=self.source,
                    mend="this plug-in tells modules apart from `layers.N.` on; rename one of them",
                )
            self._tails[key] = module

    def find(self, name: str) -> Module | None:
        """The EXL3 module that vLLM calls `name` (an expert's number as `*`), or None if it is none."""
        found = self._tails.get(tail(name))
        return found if isinstance(found, Module) else None

    def find_any(self, name: str) -> Module | Fp8Module | None:
        """The EXL3 or FP8 module that vLLM calls `name`, or None if it is native."""
        return self._tails.get(tail(name))

    def experts(self, layer: str, projections: Iterable[tuple[str, ...]]) -> list[Module] | None:
        """The EXL3 modules of a MoE layer, in the order of `projections` (each a tuple of possible names).

        Returns None if the layer's experts are native.

        Raises:
            SparkloomError: some projections are EXL3 and some are not.
        """
        names = [tuple(projections_) for projections_ in projections]
        if self.everywhere is not None:
            bits, codebook = self.everywhere
            return [Module(f"{layer}.*.{n[0]}", bits, codebook, 0, 0) for n in names]
        found = [next((m for n in all_ if (m := self.find(f"{layer}.*.{n}"))), None) for all_ in names]
        if not any(found):
            return None
        missing = [names[i][0] for i, module in enumerate(found) if module is None]
        if missing:
            raise SparkloomError(
                f"{layer}: only some of the experts' matrices are EXL3, these are not: {', '.join(missing)}",
                file=self.source,
                mend="encode gate, up and down of a layer together",
            )
        return [module for module in found if module is not None]


def read(folder: Path) -> Inventory:
    """Read every header of a checkpoint and check what can be checked without the weights.

    Raises:
        SparkloomError: a broken file, a rate, shape, dtype or marker that EXL3 does not have, a matrix that
        is
            stored twice, experts of one layer that disagree. The message names the tensor.
    """
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    shard_of: dict[str, Path] = {}
    for path in files(folder):
        for name, entry in header(path).items():
            tensors[name] = entry
            shard_of[name] = path
    return inventory(tensors, shard_of, str(folder))


def inventory(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], shard_of: Mapping[str, Path], source: str
) -> Inventory:
    """Fold checked tensor names, dtypes and shapes into an inventory; `read` without the files."""
    modules: dict[str, Module] = {}
    members: dict[str, list[str]] = {}
    for name in tensors:
        stem, _, suffix = name.rpartition(".")
        if suffix != "trellis":
            continue
        module = _module(stem, tensors, shard_of)
        key = fold(stem)
        members.setdefault(key, []).append(stem)
        known = modules.setdefault(key, module)
        if (known.bits, known.codebook, known.k, known.n) != (
            module.bits,
            module.codebook,
            module.k,
            module.n,
        ):
            raise SparkloomError(
                f"experts of one layer disagree: {members[key][0]} has {_show(known)}, "
                f"{stem} has {_show(module)}",
                file=shard_of.get(name, source),
                field=name,
                mend="encode all experts of a layer at one rate with one codebook",
            )
    native = set()
    for name in tensors:
        stem, _, suffix = name.rpartition(".")
        if suffix in ("trellis", "suh", "svh", "mcg", "mul1") and f"{stem}.trellis" not in tensors:
            raise SparkloomError(
                f"an EXL3 matrix without its trellis: {stem}",
                file=shard_of.get(name, source),
                field=name,
                mend="a shard is missing or the checkpoint was cut: fetch it again",
            )
        if suffix == "weight":
            native.add(fold(stem))
            if fold(stem) in modules:
                raise SparkloomError(
                    f"{stem} is native where {members[fold(stem)][0]} is EXL3",
                    file=shard_of.get(name, source),
                    field=name,
                    mend="store a matrix once, and encode all experts of a layer together",
                )
    counted = {
        key: Module(key, m.bits, m.codebook, m.k, m.n, len(members[key]) if "*" in key else 0)
        for key, m in modules.items()
    }
    return Inventory(source, counted, frozenset(native), fp8=fp8_headers.find(tensors, shard_of, source))


def _show(module: Module) -> str:
    return f"{module.bits:g} bits {module.codebook} {module.k}x{module.n}"


def _module(
    stem: str, tensors: Mapping[str, tuple[str, tuple[int, ...]]], shard_of: Mapping[str, Path]
) -> Module:
    """Check one matrix's tensors against the format."""

    def wrong(
        suffix: str, summary: str, mend: str = "fetch or encode this tensor again", value: object = None
    ) -> Any:
        name = f"{stem}.{suffix}"
        return SparkloomError(
            f"{name}: {summary}", file=shard_of.get(name), field=name, value=value, mend=mend
        )

    dtype, shape = tensors[f"{stem}.trellis"]
    if dtype not in ("I16", "U16") or len(shape) != 3 or not all(shape):
        raise wrong("trellis", "not int16 [k/16, n/16, 16*bits]", value=f"{dtype} {list(shape)}")
    bits = shape[2] / 16
    if bits not in RATES:
        raise wrong(
            "trellis",
            f"a rate of {bits:g} bits per weight does not exist",
            "use 1 to 8, or 1.5, 2.5, 3.5",
            bits,
        )
    k, n = shape[0] * 16, shape[1] * 16
    for size, what in ((k, "input"), (n, "output")):
        if size % 128:
            raise wrong("trellis", f"{size} {what} features are not a multiple of 128", value=size)
    codes = [mark for mark in MARKERS if f"{stem}.{mark}" in tensors]
    if len(codes) > 1:
        raise wrong("mul1", "two codebook markers on one matrix", "keep the one that it was encoded with")
    codebook = codes[0] if codes else "3inst"
    if bits != int(bits) and codebook != "mul1":
        raise wrong("trellis", f"{bits:g} bits exist with codebook mul1 only, this is {codebook}", value=bits)
    for suffix, size in (("suh", k), ("svh", n)):
        if f"{stem}.{suffix}" not in tensors:
            old = f"{stem}.{suffix[:2]}" in tensors
            raise wrong(
                suffix,
                "packed signs of an old encoder stand in its place" if old else "missing",
                "rewrite it with `sparkloom exl3 quantize`" if old else "fetch the shard that holds it again",
            )
        dtype, shape = tensors[f"{stem}.{suffix}"]
        if dtype != "F16" or shape != (size,):
            raise wrong(suffix, f"not float16 [{size}]", value=f"{dtype} {list(shape)}")
    for code in codes:
        dtype, shape = tensors[f"{stem}.{code}"]
        if dtype not in ("I32", "U32") or shape not in ((), (1,)):
            raise wrong(code, "not an int32 scalar", value=f"{dtype} {list(shape)}")
    return Module(stem, bits, codebook, k, n)


def declared(config: Mapping[str, Any], source: str = "quantization_config") -> Inventory:
    """The inventory that a configuration promises, for when no file can be read yet: every routed expert is
    EXL3 at `bits` with `codebook`, everything else is native.

    Raises:
        SparkloomError: `bits` or `codebook` is none of EXL3's.
    """
    bits, codebook = check_config(config, source)
    return Inventory(source, everywhere=(bits, codebook))


def check_config(config: Mapping[str, Any], source: str = "quantization_config") -> tuple[float, str]:
    """Check the keys of a `quantization_config`; return bits (an average) and the codebook.

    Raises:
        SparkloomError: wrong `quant_method`, `bits` outside 1..8, unknown `codebook`.
    """
    method = config.get("quant_method")
    if method != "exl3":
        raise SparkloomError(
            "this checkpoint is not declared as EXL3",
            file=source,
            field="quant_method",
            value=method,
            mend='set "quant_method": "exl3" if its tensors are EXL3 (`sparkloom exl3 inspect` tells), '
            "else serve it without this plug-in",
        )
    bits = config.get("bits", 4)
    if isinstance(bits, bool) or not isinstance(bits, int | float) or not 1 <= bits <= 8:
        raise SparkloomError(
            "bits per weight out of range", file=source, field="bits", value=bits, mend="use 1 to 8"
        )
    codebook = config.get("codebook", "mcg")
    if codebook not in CODEBOOKS:
        raise SparkloomError(
            "no such EXL3 codebook",
            file=source,
            field="codebook",
            value=codebook,
            mend="use one of: " + ", ".join(CODEBOOKS),
        )
    return float(bits), codebook

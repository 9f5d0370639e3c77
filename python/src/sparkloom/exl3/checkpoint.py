"""A checkpoint folder: its shards, its index, its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkloom.errors import SparkloomError
from sparkloom.exl3.headers import Header, read_header

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
QUANTIZATION = "quantization_config.json"


@dataclass
class Checkpoint:
    """What a folder (or one file) holds, as far as it could be read.

    Attributes:
        root: the folder.
        headers: file name to header.
        unreadable: file name to the error that its header met.
        absent: files that the index names and the folder lacks, with the number of tensors in each.
        index: tensor name to file name, or None without an index.
        config, quantization: the two JSON files, {} if absent.
    """

    root: Path
    headers: dict[str, Header] = field(default_factory=dict)
    unreadable: dict[str, SparkloomError] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)
    index: dict[str, str] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    quantization: dict[str, Any] = field(default_factory=dict)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        SparkloomError: unreadable, no JSON or no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SparkloomError(
            f"cannot read the file: {error.strerror}", file=path, mend="check the path and its permissions"
        ) from None
    except ValueError as error:
        raise SparkloomError(f"this is no JSON: {error}", file=path, mend="fetch this file again") from None
    if not isinstance(value, dict):
        raise SparkloomError("a JSON object is needed", file=path, mend="fetch this file again")
    return value


def read_index(path: Path) -> dict[str, str]:
    """Tensor name to file name.

    Raises:
        SparkloomError: no `weight_map`, or one that names anything but files of the same folder.
    """
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise SparkloomError(
            "the index has no weight_map of file names",
            file=path,
            field="weight_map",
            mend="fetch this file again",
        )
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise SparkloomError(
                "the index names a file outside its folder or of another kind",
                file=path,
                field="weight_map",
                value=name,
                mend="fetch this file again",
            )
    return weight_map


def load(path: Path) -> Checkpoint:
    """Read the headers of a checkpoint folder, or of one file of it.

    Damage to single shards is noted, not raised.

    Raises:
        SparkloomError: nothing there that could be a checkpoint, or its JSON files are damaged.
    """
    if path.is_file():
        return Checkpoint(path.parent, {path.name: read_header(path, whole=False)})
    if not path.is_dir():
        raise SparkloomError(
            "no such file or folder", file=path, mend="give a checkpoint folder or a .safetensors file"
        )
    found = Checkpoint(path)
    if (path / INDEX).is_file():
        found.index = read_index(path / INDEX)
    names = sorted(
        {p.name for p in path.glob("*.safetensors") if not p.name.startswith(".")}
        | set((found.index or {}).values())
    )
    if not names:
        raise SparkloomError(
            "this folder holds no safetensors file",
            file=path,
            mend="give the folder that holds config.json and the *.safetensors files",
        )
    for name in names:
        if not (path / name).is_file():
            found.absent[name] = sum(file == name for file in (found.index or {}).values())
            continue
        try:
            found.headers[name] = read_header(path / name, whole=False)
        except SparkloomError as error:
            found.unreadable[name] = error
    for name, attribute in ((CONFIG, "config"), (QUANTIZATION, "quantization")):
        if (path / name).is_file():
            setattr(found, attribute, read_json(path / name))
    return found


def declared(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` of a config.json, also if it stands in `text_config`; {} if there is none."""
    for place in (config, config.get("text_config")):
        if isinstance(place, Mapping) and isinstance(place.get("quantization_config"), Mapping):
            return dict(place["quantization_config"])
    return {}

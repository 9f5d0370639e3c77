"""A checkpoint with three native layers and an EXL3 matrix, donors for it, a cluster file that edits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

from fake_hub import FakeHub
from tiny_checkpoint import matrix, pack

OUT, IN, LAYERS = 8, 12, 3
DONOR, DONOR_REVISION = "acme/donor", "d" * 40
TENSOR = "model.layers.{layer}.self_attn.o_proj.weight"


def name(layer: int) -> str:
    return TENSOR.replace("{layer}", str(layer))


def weights(seed: int, layers: int = LAYERS, out: int = OUT) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name(i): rng.standard_normal((out, IN)).astype(np.float32) for i in range(layers)}


def shards(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    """Two safetensors files with an index, as a hub repository has them."""
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[:1], "model-00002-of-00002.safetensors": names[1:]}
    files = {
        file: save({n: tensors[n] for n in part} | {f"model.{file[6:11]}.pad": np.zeros(100, np.float32)})
        for file, part in halves.items()
    }
    index = {n: file for file, part in halves.items() for n in part}
    total = {"total_size": sum(map(len, files.values()))}
    files["model.safetensors.index.json"] = json.dumps({"metadata": total, "weight_map": index}).encode()
    return files


class World:
    """Everything that an edit needs, in one folder."""

    def __init__(self, root: Path, hub: FakeHub) -> None:
        self.root, self.hub = root, hub
        self.ours = weights(0)
        rng = np.random.default_rng(9)
        self.theirs = {
            n: (w + 0.1 * rng.standard_normal(w.shape)).astype(np.float32) for n, w in self.ours.items()
        }
        self.model, self.folder, self.cluster = root / "model", root / "ablit", root / "cluster.json"
        self.write_model()
        self.publish(self.theirs)
        self.ask()

    def write_model(self, extra: dict[str, bytes] | None = None) -> None:
        self.model.mkdir(exist_ok=True)
        (self.model / "a.safetensors").write_bytes(save(self.ours))
        (self.model / "b.safetensors").write_bytes(pack(matrix("model.layers.9.self_attn.o_proj", 128, 128)))
        for file, data in (extra or {}).items():
            (self.model / file).write_bytes(data)

    def publish(self, tensors: dict[str, np.ndarray]) -> None:
        self.hub.add(shards(tensors), DONOR, DONOR_REVISION)

    def ask(self, **ablit: Any) -> Path:
        """Write the cluster file; keyword arguments go into its section `ablit`."""
        self.section = {
            "method": "transplant",
            "accept_behaviour_change": True,
            "donor_repo": DONOR,
            "donor_revision": DONOR_REVISION,
            "first_layer": 0,
            "last_layer": LAYERS - 1,
            "tensor": TENSOR,
            "path": str(self.folder),
            **ablit,
        }
        base = json.loads((Path(__file__).resolve().parents[2] / "docs/examples/cluster.json").read_text())
        base["model"]["path"] = str(self.model)
        base["ablit"] = {k: v for k, v in self.section.items() if v is not None}
        self.cluster.write_text(json.dumps(base))
        return self.cluster

    def fetch(self) -> list[str]:
        return ["ablit", "fetch", str(self.cluster), "--endpoint", self.hub.url, "--attempts", "2"]

    def pin(self) -> str:
        """Pin what was fetched."""
        import hashlib

        found = hashlib.sha256((self.folder / "manifest.json").read_bytes()).hexdigest()
        self.ask(**{**self.section, "manifest_sha256": found})
        return found

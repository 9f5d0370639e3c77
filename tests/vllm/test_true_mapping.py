"""Every tensor of the true checkpoint has one place in vLLM's GLM-5.3, over two and four ranks.

vLLM's own classes and loaders, at the true sizes, on the meta device: no weights, no memory. What a rank
holds beside its parameters while it loads is counted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fixtures import true_geometry

from sparkloom.exl3.headers import DTYPE_BITS

pytestmark = pytest.mark.heavy
pytest.importorskip("vllm")

ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "exl3",
    "SPARKLOOM_PATCHES": '{"dense_quantization": true}',
}
SHARED = {"model.embed_tokens.weight"}
"""What the draft takes from the trunk once both are loaded."""


def load(folder: Path, tp: int) -> list[dict[str, Any]]:
    script, out = Path(__file__).with_name("true_mapping.py"), folder / "out.json"
    ranks = ",".join(map(str, range(tp)))
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(tp), ranks, str(out)],
        env=os.environ | ENV,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def holes(load: dict[str, Any]) -> list[str]:
    """Parameters that were not filled exactly once, end to end.

    Markers apart: a merged layer has a slot per matrix for them, native ones leave theirs empty.
    """
    parts = defaultdict(list)
    for name, start, count, *_ in load["landed"]:
        if count:
            parts[name].append((start, count))
    found = []
    for name, (size, _) in load["sizes"].items():
        if name.endswith(".mcg"):
            continue
        at = 0
        for start, count in sorted(parts[name]):
            at = at + count if start == at else -1
        if at != size:
            found.append(name)
    return found


@pytest.mark.parametrize(
    ("tp", "dense", "experts"),
    [(2, "native", 288), (2, "fp8", 4), (4, "exl3", 4)],
)
def test_every_tensor_has_one_place(tp: int, dense: str, experts: int, tmp_path: Path) -> None:
    shape = dataclasses.replace(true_geometry.true_shape(), experts=experts, top_k=min(8, experts))
    table = true_geometry.table(dense, shape)
    if tp == 4 and dense == "exl3":  # a quarter of the vocabulary is no multiple of 128
        table = {name: entry for name, entry in table.items() if not name.startswith("lm_head.")}
        table["lm_head.weight"] = ("BF16", (shape.vocab, shape.hidden))
    folder = true_geometry.write(tmp_path / "true", table, shape)
    ranks = load(folder, tp)

    taken: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for loads in ranks:
        assert holes(loads["trunk"]) == []
        assert set(holes(loads["draft"])) == SHARED
        for kind in ("trunk", "draft"):
            for _, _, count, source, start, size in loads[kind]["landed"]:
                if count:
                    assert (size, start >= 0) == (count, True), source
                    taken[source].append((kind, start, size))
    left = {name for name in table if name not in taken}
    assert all(name.startswith("model.visual.") for name in left), sorted(left)[:5]
    assert set(taken) <= set(table)
    cut = 0
    for name, parts in taken.items():
        whole = math.prod(table[name][1])
        assert len(parts) == tp, name  # once on every rank
        assert len({kind for kind, _, _ in parts}) == 1, name
        if all(size == whole for _, _, size in parts):
            continue
        cut += 1
        assert sum(size for _, _, size in parts) == whole, name
        assert len({start for _, start, _ in parts}) == tp, name

    nbytes = {name: math.prod(size) * DTYPE_BITS[dtype] // 8 for name, (dtype, size) in table.items()}
    largest = max(nbytes.values())
    for number, loads in enumerate(ranks):
        resident = sum(size for kind in loads.values() for _, size in kind["sizes"].values())
        peak = max(kind["peak"] for kind in loads.values())
        print(
            f"TP {tp} rank {number}, dense {dense}: {len(taken)} tensors, {cut} cut, "
            f"{resident / 1e9:.2f} GB held, at most {peak / 1e9:.3f} GB beside "
            f"(largest tensor {largest / 1e9:.3f} GB)"
        )
        assert peak <= largest + (192 << 20)
    if experts == 288:
        assert len(table) == 149_904
        assert 84e9 < resident < 92e9

"""Weights in the plan: geometry first, corrected by the manifest or the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkloom.cluster import Cluster, parse
from sparkloom.errors import Exit, SparkloomError
from sparkloom.plan import needs
from sparkloom.plan.checkpoint import manifest_bytes

GIB = 1 << 30
Make = Callable[..., Cluster]


def manifest(path: Path, total: int) -> Path:
    shards = [{"path": f"model-{i}.safetensors", "size": total // 4, "sha256": "0" * 64} for i in range(4)]
    rows = [*shards, {"path": "config.json", "size": 5000}]
    path.write_text(json.dumps({"format": 1, "repo": "a/b", "revision": "0" * 40, "files": rows}))
    return path


def weights(cluster: Cluster) -> dict[str, int]:
    return {item.what: item.bytes for item in needs(cluster, cluster.head, 0)}


def test_the_published_checkpoint_is_what_the_geometry_says(make: Make, tmp_path: Path) -> None:
    """164 GiB in 120 shards: the geometry explains it to within one per cent."""
    file = manifest(tmp_path / "m.json", 164 * GIB)
    extra = weights(make(model={"manifest": str(file)})).get("beyond the geometry", 0)
    assert extra < 0.01 * 164 * GIB


def test_a_larger_checkpoint_is_counted(make: Make, tmp_path: Path) -> None:
    sizes = []
    for total in (164, 180):
        file = manifest(tmp_path / f"{total}.json", total * GIB)
        sizes.append(weights(make(model={"manifest": str(file)})).get("beyond the geometry", 0))
    assert sizes[1] - sizes[0] == pytest.approx(8 * GIB, rel=0.05)


def test_a_variant_with_quantised_dense_layers_gives_its_saving_back(make: Make, tmp_path: Path) -> None:
    """Counted only where the cluster file lets such layers load; no item is pushed below zero."""
    by_size = {}
    for total in (156, 148, 1):
        file = str(manifest(tmp_path / f"{total}.json", total * GIB))
        off = make(model={"manifest": file})
        assert "beyond the geometry" not in weights(off)
        on = weights(make(model={"manifest": file}, patches={"dense_quantization": True}))
        assert all(size >= 0 for size in on.values())
        assert on["routed experts"] == weights(off)["routed experts"]
        by_size[total] = sum(on.values())
    assert by_size[156] - by_size[148] == pytest.approx(4 * GIB, rel=0.05)
    assert by_size[1] < by_size[148]


def test_manifest_beside_the_checkpoint_is_found(make: Make, tmp_path: Path) -> None:
    manifest(tmp_path / "sparkloom-manifest.json", 180 * GIB)
    assert manifest_bytes(make(model={"path": str(tmp_path)})) == 180 * GIB


def small(path: Path, **engine: Any) -> Cluster:
    nodes = [
        {"name": f"n{i}", "role": "worker" if i else "head", "fabric": {"addresses": [f"127.0.0.{i + 1}"]}}
        for i in range(2)
    ]
    nodes[1] |= {"agent_port": 8780, "status_port": 8781}
    return parse(
        {
            "nodes": nodes,
            "model": {"path": str(path), "geometry": "checkpoint"},
            "engine": {"platform": "cpu", **engine},
        }
    )


def test_other_models_take_the_files(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"model-{i}.safetensors").write_bytes(bytes(1000))
    assert weights(small(tmp_path))["weights"] == 1000
    assert weights(small(tmp_path, dtype="float32"))["weights"] == 2000


def test_no_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    cluster = small(tmp_path / "absent")
    with pytest.raises(SparkloomError) as caught:
        needs(cluster, cluster.head, 0)
    assert caught.value.code is Exit.RESOURCE
    assert caught.value.field == "model.path"


@settings(deadline=None)
@given(
    value=st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["files", "path", "size"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_manifest(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(value))
    cluster = parse(
        {
            "nodes": [{"name": "n", "role": "head", "fabric": {"addresses": ["10.0.0.1"]}}],
            "model": {"manifest": str(file)},
        }
    )
    try:
        total = manifest_bytes(cluster)
    except SparkloomError as error:
        assert error.mend  # noqa: PT017
    else:
        assert isinstance(total, int)

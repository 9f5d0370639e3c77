"""The memory plan over fixtures: exact sums, the smaller node binds, refusals say what would fit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkloom.cli.main import run
from sparkloom.cluster import Cluster, ClusterError, settings
from sparkloom.errors import Exit, SparkloomError
from sparkloom.plan import free, plan
from sparkloom.plan.needs import image_bytes

GIB = 1 << 30
Make = Callable[..., Cluster]


def frees(folder: Path, head: str, worker: str) -> dict[str, free.Free]:
    return {"head": free.read(folder / f"{head}.txt"), "worker": free.read(folder / f"{worker}.txt")}


def item(node: Any, what: str) -> int:
    return sum(each.bytes for each in node.items if each.what == what)


CASES = [
    # head, worker, options, fits, binding node
    ("idle-headless", "idle-headless", {}, True, "head"),
    ("idle-headless", "idle-twin", {}, True, "worker"),
    ("idle-headless", "desktop", {}, False, "worker"),
    ("idle-twin", "idle-headless", {}, False, "head"),
    ("desktop", "idle-headless", {}, False, "head"),
    ("cache-full", "cache-full", {}, True, "head"),
    ("cache-full", "cache-full", {"memory": {"drop_page_cache": False}}, False, "head"),
    ("idle-headless", "idle-headless", {"serving": {"loader": "instanttensor"}}, True, "head"),
    (
        "idle-twin",
        "idle-headless",
        {"profile": "text-only", "serving": {"context_tokens": 131_072}},
        True,
        "head",
    ),
    (
        "idle-headless",
        "idle-headless",
        {"serving": {"context_tokens": 1_048_576, "max_sequences": 8}},
        False,
        "head",
    ),
]


@pytest.mark.parametrize(("head", "worker", "options", "fits", "binding"), CASES)
def test_table(
    make: Make, meminfo: Path, head: str, worker: str, options: dict[str, Any], fits: bool, binding: str
) -> None:
    cluster = make(**options)
    drop = cluster.memory.drop_page_cache
    found = plan(
        cluster,
        {
            "head": free.read(meminfo / f"{head}.txt", drop_page_cache=drop),
            "worker": free.read(meminfo / f"{worker}.txt", drop_page_cache=drop),
        },
    )
    assert found.fits is fits, [(n.name, n.need_bytes / GIB, n.free.free_bytes / GIB) for n in found.nodes]
    assert found.binding.name == binding
    for node in found.nodes:
        assert node.need_bytes == sum(each.bytes for each in node.items)
        assert node.fits is (node.need_bytes <= node.free.free_bytes)
    assert bool(found.mends) is not fits


def test_json_contract(make: Make, meminfo: Path) -> None:
    document = plan(make(), frees(meminfo, "idle-headless", "idle-twin")).as_dict()
    assert {"nodes", "binding_node", "kv", "largest_context", "verdict"} <= set(document)
    for node in document["nodes"]:
        assert {"name", "items", "need_bytes", "free_bytes", "fits"} <= set(node)
        for each in node["items"]:
            assert set(each) == {"what", "bytes", "source"}
            assert each["bytes"] > 0
            assert each["source"]
    assert json.loads(json.dumps(document)) == document


def test_every_mend_that_is_named_fits(make: Make, meminfo: Path) -> None:
    """Apply each proposed change and plan again."""
    memory = frees(meminfo, "idle-twin", "desktop")
    for profile in ("interactive", "long-context", "agents", "no-drafter", "text-only"):
        found = plan(make(profile=profile), memory)
        for mend in found.mends:
            if mend.startswith("free "):
                continue
            sections: dict[str, Any] = {}
            for part in mend.removeprefix("set ").split(", "):
                path, _, value = part.partition(" to ")
                section, name = path.split(".")
                sections.setdefault(section, {})[name] = json.loads(value)
            assert plan(make(profile=profile, **sections), memory).fits, (profile, mend)


def test_largest_context_is_exact(make: Make, meminfo: Path) -> None:
    memory = frees(meminfo, "idle-twin", "idle-twin")
    largest = plan(make(profile="long-context"), memory).largest_context
    assert 4608 < largest < settings(make(profile="long-context")).context_tokens
    for context, fits in ((largest, True), (largest + 1, False)):
        cluster = make(profile="long-context", serving={"context_tokens": context})
        assert plan(cluster, memory).fits is fits


def test_nothing_fits_says_how_much_to_free(make: Make) -> None:
    small = free.Free(121 * GIB, 60 * GIB, 60 * GIB, None, "test")
    found = plan(make(), {"head": small, "worker": small})
    assert found.largest_context == 0
    assert len(found.mends) == 1
    assert found.mends[0].startswith("free ")


def test_full_page_cache_gives_a_step_before_the_start(make: Make, meminfo: Path) -> None:
    found = plan(make(), frees(meminfo, "cache-full", "idle-headless"))
    assert len(found.steps) == 1
    assert found.steps[0].startswith("head: drop clean page cache")


def test_raised_min_free_is_named(make: Make, meminfo: Path) -> None:
    found = plan(make(), frees(meminfo, "min-free-4g", "idle-headless"))
    assert [f.check for f in found.findings if f.check == "plan.min_free_kbytes"]
    assert found.binding.name == "head"
    assert found.largest_context < plan(make(), frees(meminfo, *["idle-headless"] * 2)).largest_context


def test_loader_ring_is_counted(make: Make, meminfo: Path) -> None:
    memory = frees(meminfo, "idle-headless", "idle-headless")
    ring = plan(make(serving={"loader": "instanttensor"}), memory)
    plain = plan(make(), memory)
    extra = ring.nodes[0].need_bytes - plain.nodes[0].need_bytes
    assert 4.4 * GIB <= extra <= 5.6 * GIB
    assert ring.largest_context < plain.largest_context


def test_images_are_reserved(make: Make, meminfo: Path) -> None:
    """33 full-size images took several GiB of host memory; what is allowed must be in the sum."""
    memory = frees(meminfo, "idle-headless", "idle-headless")
    vision = {"max_images": 33, "max_image_tokens": 8000}
    found = plan(make(vision=vision, serving={"context_tokens": 500_000}), memory)
    assert item(found.nodes[0], "image reserve") == 33 * image_bytes(8000)
    assert item(found.nodes[0], "image reserve") > 9 * GIB
    assert not item(plan(make(profile="text-only"), memory).nodes[0], "image reserve")


def test_a_pinned_pool_keeps_the_activation_reserve(make: Make, meminfo: Path) -> None:
    memory = frees(meminfo, "idle-headless", "idle-headless")
    room = plan(make(), memory).kv()["largest_pool_bytes"]
    at_the_edge = plan(make(serving={"kv_cache_bytes": room}), memory)
    assert at_the_edge.fits
    assert item(at_the_edge.nodes[0], "activation reserve") > GIB
    assert not plan(make(serving={"kv_cache_bytes": room + GIB}), memory).fits


@pytest.mark.parametrize("size", [1 << 30, 60 << 30])
def test_a_pin_that_cannot_be_right_is_refused_at_once(make: Make, size: int) -> None:
    with pytest.raises(ClusterError) as caught:
        make(serving={"kv_cache_bytes": size})
    assert caught.value.field == "serving.kv_cache_bytes"


def test_smaller_draft_block_gives_more_blocks(make: Make, meminfo: Path) -> None:
    memory = frees(meminfo, "idle-headless", "idle-headless")
    pin = {"serving": {"kv_cache_bytes": 12 * GIB}}
    stock, small = (
        plan(make(**pin), memory),
        plan(make(**pin, patches={"draft_kv_block_tokens": 2304}), memory),
    )
    assert small.kv()["pool_blocks"] / stock.kv()["pool_blocks"] == pytest.approx(1.35, abs=0.01)
    assert small.kv()["cached_conversation_tokens"] > stock.kv()["cached_conversation_tokens"]


def test_more_of_anything_never_needs_less(make: Make, meminfo: Path) -> None:
    memory = frees(meminfo, "idle-headless", "idle-headless")
    for name, low, high in [
        ("context_tokens", 65_536, 524_288),
        ("max_sequences", 1, 8),
        ("max_batched_tokens", 4608, 16_384),
    ]:
        small, large = (plan(make(serving={name: v}, vision={"max_images": 4}), memory) for v in (low, high))
        assert small.nodes[0].need_bytes < large.nodes[0].need_bytes, name


def test_node_counts(meminfo: Path) -> None:
    from sparkloom.cluster import parse

    needs = []
    for count in (1, 2, 3, 4):
        nodes = [
            {"name": f"n{i}", "role": "worker" if i else "head", "fabric": {"addresses": [f"10.0.0.{i + 1}"]}}
            for i in range(count)
        ]
        cluster = parse({"nodes": nodes})
        found = plan(cluster, {n.name: free.read(meminfo / "idle-headless.txt") for n in cluster.nodes})
        needs.append(found.binding.need_bytes)
        assert found.fits is (count > 1)
    assert all(a > b for a, b in itertools.pairwise(needs))


# ------------------------------------------------------------------ command


@pytest.fixture
def file(tmp_path: Path, make: Make) -> Path:
    path = tmp_path / "cluster.json"
    document = make().model_dump(mode="json", exclude_unset=True)
    path.write_text(json.dumps(document))
    return path


def test_command_fits(file: Path, meminfo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle = meminfo / "idle-headless.txt"
    args = ["plan", str(file), "--meminfo", f"head={idle}", "--meminfo", f"worker={idle}"]
    assert run([*args, "--format", "json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "fits"
    assert run(args) == Exit.OK
    text = capsys.readouterr().out
    for word in ("routed experts", "KV pool", "host floor", "need", "free", "█"):
        assert word in text


def test_command_refuses_with_both_sums(
    file: Path, meminfo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["plan", str(file), "--meminfo", f"head={meminfo}/idle-headless.txt"]
    args += ["--meminfo", f"worker={meminfo}/desktop.txt"]
    assert run([*args, "--format", "json"]) == Exit.CHECK
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "does not fit"
    assert document["binding_node"] == "worker"
    assert document["mends"]
    assert run(args) == Exit.CHECK
    text = capsys.readouterr().out
    assert "head needs" in text
    assert "worker needs" in text
    assert "mend:" in text


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("nobody=x", Exit.USAGE),
        ("head", Exit.USAGE),
        ("head=/absent", Exit.INPUT),
    ],
)
def test_command_bad_options(file: Path, option: str, code: Exit) -> None:
    assert run(["plan", str(file), "--meminfo", option]) == code


def test_command_node_lives_below_root(file: Path, tmp_path: Path, meminfo: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text((meminfo / "desktop.txt").read_text())
    assert run(["plan", str(file), "--node", "head", "--root", str(tmp_path)]) == Exit.CHECK
    with pytest.raises(SparkloomError):
        free.live(tmp_path / "absent")


def test_roles_name_nodes(meminfo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example's nodes have other names than head and worker."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "cluster.json"
    args = ["plan", str(example), "--meminfo", f"head={meminfo}/idle-headless.txt"]
    args += ["--meminfo", f"worker={meminfo}/idle-twin.txt", "--format", "json"]
    assert run(args) == Exit.OK
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [node["name"] for node in nodes] == ["spark-head", "spark-worker"]
    assert all("meminfo" in node["free_source"] for node in nodes)
    assert run([*args, "--meminfo", f"spark-head={meminfo}/desktop.txt"]) == Exit.USAGE

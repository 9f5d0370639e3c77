"""`sparkloom ablit` against a hub that cuts and lies, and donors that do not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ablit_world import DONOR, IN, LAYERS, OUT, World, name, shards, weights
from safetensors.numpy import save

from sparkloom.cli.main import run
from sparkloom.errors import Exit

SECOND = "model-00002-of-00002.safetensors"
FIRST = "model-00001-of-00002.safetensors"


def out(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_plan_fetch_pin_verify_show(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(world.cluster)
    assert run(["ablit", "plan", file, "--endpoint", world.hub.url, "--format", "json"]) == 0
    planned = out(capsys)
    assert planned["bytes"] == LAYERS * OUT * IN * 4
    assert planned["problems"] == []
    assert not (world.folder / "manifest.json").exists()

    assert run([*world.fetch(), "--format", "json"]) == 0
    fetched = out(capsys)
    assert len(fetched["fetched"]) == LAYERS
    assert not fetched["pinned"]
    for n, want in world.theirs.items():
        assert (world.folder / f"tensors/{n}.bin").read_bytes() == want.tobytes()
    assert world.pin() == fetched["manifest_sha256"]

    assert run([*world.fetch(), "--format", "json"]) == 0  # the second run fetches nothing
    assert out(capsys)["fetched"] == []
    assert run(["ablit", "verify", file, "--format", "json"]) == 0
    receipt = out(capsys)
    assert receipt["pinned"]
    assert receipt["quality"] is receipt["acceptance"] is None
    assert "must be" in receipt["note"] or "until they are measured" in receipt["note"]
    for row in receipt["tensors"]:
        ours, theirs = world.ours[row["tensor"]], world.theirs[row["tensor"]]
        want = np.linalg.norm(theirs - ours) / np.linalg.norm(ours)
        assert row["relative_change"] == pytest.approx(want, abs=1e-5)
    assert run(["ablit", "show", file]) == 0
    shown = capsys.readouterr().out
    assert f"transplant of {LAYERS} tensors: {name(0)} to {name(LAYERS - 1)}" in shown
    assert "quality: not measured since the edit" in shown


def test_only_the_needed_bytes_cross_the_wire(world: World) -> None:
    assert run(world.fetch()) == 0
    asked = [h["Range"] for path in (FIRST, SECOND) for h in world.hub.asked(path)]
    assert all(re.fullmatch(r"bytes=\d+-\d+", r) for r in asked)
    spans = [tuple(map(int, r.removeprefix("bytes=").split("-"))) for r in asked]
    tensors = sum(b - a + 1 for a, b in spans if b - a + 1 == OUT * IN * 4)
    assert tensors == LAYERS * OUT * IN * 4
    assert sum(b - a + 1 for a, b in spans) < tensors + 2 * (8 + 8 + 600)  # and two headers


def test_cut_transfer_goes_on_where_it_ended(world: World) -> None:
    assert run(world.fetch()) == 0  # headers are kept by now
    first = sorted(world.folder.glob("tensors/*.bin"))[1]
    want = first.read_bytes()
    first.unlink()
    world.hub.requests.clear()
    world.hub.moods[SECOND].extend(["cut:100"])
    assert run(world.fetch()) == 0
    assert first.read_bytes() == want
    starts = [int(h["Range"].split("=")[1].split("-")[0]) for h in world.hub.asked(SECOND)]
    assert len(starts) == 2
    assert starts[1] > starts[0]


def test_server_without_ranges_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.hub.always[FIRST] = "norange"
    assert run(world.fetch()) == Exit.NETWORK
    assert "gives no byte ranges" in capsys.readouterr().err
    assert not (world.folder / "manifest.json").exists()


def test_another_revision_is_not_mixed_in(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(world.fetch()) == 0
    old = world.pin()
    other = {n: w + np.float32(0.2) for n, w in world.theirs.items()}
    world.hub.add(shards(other), DONOR, "e" * 40)
    world.ask(donor_revision="e" * 40, manifest_sha256=old)
    capsys.readouterr()
    assert run(world.fetch()) == Exit.CHECK  # the pin is of the other donor
    assert "another is pinned" in capsys.readouterr().err
    for n, want in other.items():
        assert (world.folder / f"tensors/{n}.bin").read_bytes() == want.tobytes()


def broken_shape(world: World) -> None:
    world.publish({**world.theirs, name(1): weights(1, out=OUT * 2)[name(1)]})


def broken_dtype(world: World) -> None:
    world.publish({n: w.astype(np.float16) for n, w in world.theirs.items()})


def missing_tensor(world: World) -> None:
    world.publish({n: w for n, w in world.theirs.items() if n != name(2)})


def exl3_target(world: World) -> None:
    world.ask(first_layer=9, last_layer=9)


def missing_target(world: World) -> None:
    world.ask(last_layer=4)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (broken_shape, "the donor has the shape"),
        (broken_dtype, "the donor's tensor is F16, ours is F32"),
        (missing_tensor, "the donor has no tensor"),
        (exl3_target, "it is EXL3"),
        (missing_target, "the checkpoint has no such tensor"),
    ],
)
def test_donor_that_does_not_fit_is_not_fetched(
    world: World, capsys: pytest.CaptureFixture[str], spoil: Any, words: str
) -> None:
    spoil(world)
    assert run(["ablit", "plan", str(world.cluster), "--endpoint", world.hub.url]) == Exit.CHECK
    assert words in capsys.readouterr().out
    assert run(world.fetch()) == Exit.CHECK
    assert words in capsys.readouterr().err
    assert not (world.folder / "manifest.json").exists()
    assert not list(world.folder.glob("tensors/*.bin"))


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (lambda w: w.copy(), "below ablit.least_change"),
        (lambda w: -w, "above ablit.most_change"),
        (lambda w: np.full_like(w, np.nan), "not finite"),
    ],
)
def test_change_that_is_not_believable(
    world: World, capsys: pytest.CaptureFixture[str], theirs: Any, words: str
) -> None:
    world.publish({n: theirs(w) for n, w in world.ours.items()})
    assert run(world.fetch()) == 0
    assert run(["ablit", "verify", str(world.cluster)]) == Exit.CHECK
    assert words in capsys.readouterr().err
    assert not (world.folder / "receipt.json").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-4], "cut short"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "another hash"),
        (lambda data: None, "cannot read"),
    ],
)
def test_damaged_bytes_are_seen_and_fetched_again(
    world: World, capsys: pytest.CaptureFixture[str], damage: Any, words: str
) -> None:
    assert run(world.fetch()) == 0
    world.pin()
    path = world.folder / f"tensors/{name(1)}.bin"
    sound = path.read_bytes()
    spoiled = damage(sound)
    path.unlink() if spoiled is None else path.write_bytes(spoiled)
    assert run(["ablit", "verify", str(world.cluster)]) == Exit.CHECK
    assert words in capsys.readouterr().err
    assert run([*world.fetch(), "--format", "json"]) == 0
    assert out(capsys)["fetched"] == [name(1)]
    assert path.read_bytes() == sound


def test_manifest_other_than_pinned(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(world.fetch()) == 0
    world.ask(manifest_sha256="0" * 64)
    assert run(["ablit", "verify", str(world.cluster)]) == Exit.CHECK
    assert "another is pinned" in capsys.readouterr().err


def test_projection_with_directions_of_a_folder(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    folder = world.root / "directions"
    folder.mkdir()
    rng = np.random.default_rng(3)
    vectors = {f"direction.{i}": rng.standard_normal(OUT).astype(np.float32) for i in range(LAYERS)}
    (folder / "d.safetensors").write_bytes(save(vectors))
    world.ask(method="projection", donor_tensor="direction.{layer}")
    assert run(["ablit", "fetch", str(world.cluster), "--from", str(folder)]) == 0
    assert world.hub.requests == []
    world.pin()
    capsys.readouterr()
    assert run(["ablit", "verify", str(world.cluster), "--format", "json"]) == 0
    receipt = out(capsys)
    assert receipt["method"] == "projection"
    assert receipt["strength"] == 1.0
    assert 0 < receipt["relative_change"]["least"] < 1


def test_measurements_are_recorded_and_dropped_with_another_edit(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(world.cluster)
    assert run(world.fetch()) == 0
    world.pin()
    assert run(["ablit", "record", file, "--quality", str(tmp_path / "q.json")]) == Exit.CHECK
    assert run(["ablit", "verify", file]) == 0
    row = {"windows": 4, "positions": 100, "kld_mean": 0.3, "kld_low": 0.2, "kld_high": 0.4, "same_top": 0.7}
    (tmp_path / "q.json").write_text(json.dumps({"seal": "s", "models": {"edited": row}}))
    runs = [{"acceptance": {"tokens_per_step": t}} for t in (2.0, 2.5, 3.0)]
    (tmp_path / "b.json").write_text(json.dumps({"results": {"decode": {"prose": {"runs": runs}}}}))
    words = ["--quality", str(tmp_path / "q.json"), "--bench", str(tmp_path / "b.json")]
    capsys.readouterr()
    assert run(["ablit", "record", file, *words, "--format", "json"]) == 0
    done = out(capsys)
    assert done["quality"]["kld_mean"] == 0.3
    assert done["acceptance"]["tokens_per_step"] == {"prose": 2.5}
    assert run(["ablit", "verify", file, "--format", "json"]) == 0  # the same edit: measurements stay
    assert out(capsys)["quality"]["kld_mean"] == 0.3
    world.publish({n: w + np.float32(0.05) for n, w in world.theirs.items()})
    world.ask(donor_revision="d" * 40)
    (world.folder / "fetched.json").unlink()
    assert run(world.fetch()) == 0
    assert run(["ablit", "verify", file]) == 0
    assert json.loads((world.folder / "receipt.json").read_text())["quality"] is None


def test_preflight_looks_at_the_edit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def look() -> list[tuple[str, str]]:
        line = [
            "preflight",
            str(world.cluster),
            "--node",
            "spark-head",
            "--only",
            "ablit",
            "--format",
            "json",
        ]
        run(line)
        return [(f["level"], f["summary"]) for f in out(capsys)["findings"]]

    assert look()[0][0] == "fail"  # not pinned, not here
    assert run(world.fetch()) == 0
    world.pin()
    capsys.readouterr()
    assert look() == [("warn", "the weight edit was never verified here")]
    assert run(["ablit", "verify", str(world.cluster)]) == 0
    capsys.readouterr()
    assert look() == [("warn", "quality and draft acceptance of the edited model were not measured")]
    receipt = world.folder / "receipt.json"
    done = json.loads(receipt.read_text()) | {"quality": {}, "acceptance": {}}
    receipt.write_text(json.dumps(done))
    assert look()[0][0] == "ok"
    path = world.folder / f"tensors/{name(1)}.bin"
    path.write_bytes(path.read_bytes()[:-1])
    level, summary = look()[0]
    assert level == "fail"
    assert f"{name(1)} has 383 of 384 bytes" in summary
    world.ask(method="none")
    assert look() == []


def test_record_refuses_other_files(world: World, tmp_path: Path) -> None:
    assert run(world.fetch()) == 0
    assert run(["ablit", "verify", str(world.cluster)]) == 0
    (tmp_path / "x.json").write_text("{}")
    for option in ("--quality", "--bench"):
        assert run(["ablit", "record", str(world.cluster), option, str(tmp_path / "x.json")]) == Exit.INPUT
    assert run(["ablit", "record", str(world.cluster)]) == Exit.USAGE


def test_off_by_default(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(repo / "docs/examples/cluster.json")
    assert run(["ablit", "show", file]) == 0
    assert "no weight edit" in capsys.readouterr().out
    assert run(["ablit", "fetch", file]) == Exit.INPUT
    assert "asks for no weight edit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"accept_behaviour_change": None}, "ablit.accept_behaviour_change"),
        ({"donor_repo": None}, "ablit.donor_repo"),
        ({"donor_revision": None}, "ablit.donor_revision"),
        ({"last_layer": 0, "first_layer": 2}, "ablit.last_layer"),
        ({"least_change": 0.5, "most_change": 0.5}, "ablit.least_change"),
        ({"tensor": "no.place.for.it"}, "ablit.tensor"),
        ({"donor_revision": "main"}, "ablit.donor_revision"),
    ],
)
def test_cluster_file_that_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], change: dict[str, Any], field: str
) -> None:
    world.ask(**change)
    assert run(["validate", str(world.cluster), "--format", "json"]) == Exit.INPUT
    assert [p["field"] for p in out(capsys)["error"]["problems"]] == [field]


def test_render_needs_the_pin_and_gives_it_to_both_ranks(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def render(node: str) -> tuple[int, Any]:
        code = run(["render", str(world.cluster), "--node", node, "--format", "json"])
        return code, out(capsys)

    code, said = render("spark-head")
    assert code == Exit.INPUT
    assert said["error"]["field"] == "ablit.manifest_sha256"
    world.ask(manifest_sha256="a" * 64)
    (_, head), (_, worker) = render("spark-head"), render("spark-worker")
    assert head["env"]["SPARKLOOM_ABLIT"] == worker["env"]["SPARKLOOM_ABLIT"]
    assert "a" * 64 in head["env"]["SPARKLOOM_ABLIT"]
    assert head["digest"] == worker["digest"]
    world.ask(manifest_sha256="b" * 64)
    assert render("spark-head")[1]["digest"] != head["digest"]
    world.ask(method="none")
    assert "SPARKLOOM_ABLIT" not in render("spark-head")[1]["env"]

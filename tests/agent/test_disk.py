"""What a full, read-only or lost disk does to an agent: a reason, never a second rank of one generation."""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkloom import fsio
from sparkloom.agent import state
from sparkloom.agent.coordinator import Coordinator
from sparkloom.agent.node import LocalNode
from sparkloom.agent.settings import settings_of
from sparkloom.cluster import Cluster, parse
from sparkloom.errors import Exit, SparkloomError
from sparkloom.pair import Beat, Phase
from sparkloom.preflight import boot
from sparkloom.sysroot import SysRoot

BEAT = Beat(term=10**11, seq=1, epoch=1, floor=0, desired=None, digest="", lease_s=60.0)
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
MakeNode = Callable[..., LocalNode]


def cluster(folder: Path, *, nodes: int = 1, command: list[str] = SLEEP) -> Cluster:
    rows = [
        {"name": f"n{i}", "role": "worker" if i else "head", "fabric": {"addresses": [f"127.0.0.{i + 1}"]}}
        for i in range(nodes)
    ]
    (folder / "model").mkdir(exist_ok=True)
    return parse(
        {
            "nodes": rows,
            "model": {"path": str(folder / "model"), "quantization": "none", "geometry": "checkpoint"},
            "drafter": {"kind": "none"},
            "engine": {"platform": "cpu", "dtype": "float32", "command": command},
            "agent": {"state_directory": str(folder / "state"), "socket": str(folder / "agent.sock")},
        }
    )


def local(folder: Path, **options: Any) -> LocalNode:
    made = cluster(folder, **options)
    settings = replace(settings_of(made, "n0"), state=folder / "state")
    tree = folder / "root"
    fsio.write_text(tree / "proc/sys/kernel/random/boot_id", "boot-1\n")
    fsio.write_json(tree / "proc/net/ip-addr.json", [{"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]}])
    return LocalNode(
        settings, lambda: made, state.load(folder / "state"), root=SysRoot(tree), agent="one-agent"
    )


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Turns the disk full or free again for everything that is written whole."""
    real = fsio.write_text
    full = False

    def write(path: Path, *rest: Any, **options: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, *rest, **options)

    monkeypatch.setattr(fsio, "write_text", write)

    def switch(value: bool) -> None:
        nonlocal full
        full = value

    return switch


def test_a_state_that_cannot_be_written_names_file_field_and_mend(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    found = state.load(tmp_path / "state")
    with pytest.raises(SparkloomError) as caught:
        found.save()
    error = caught.value
    assert error.code is Exit.RESOURCE
    assert error.field == "agent.state_directory"
    assert str(tmp_path / "state") in str(error)
    assert "mend: make room" in str(error)


def test_no_rank_starts_while_its_generation_cannot_be_written_down(
    tmp_path: Path, full_disk: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async def go() -> None:
        node = local(tmp_path)
        first = await node.beat(BEAT)
        full_disk(True)
        wanted = replace(BEAT, seq=2, desired=1, digest=first.digest, phase=Phase.LAUNCHING)
        report = await node.beat(wanted)
        assert node.rank is None
        assert not report.alive
        assert report.generation == 1  # it counts as launched and ended: never again
        assert "No space left" in report.exit_text
        assert any("No space left" in b for b in report.blockers)
        full_disk(False)
        report = await node.beat(replace(wanted, seq=3, desired=None, phase=Phase.GATE))
        assert report.blockers == ()
        assert state.load(tmp_path / "state").launched == 1
        await node.stop()

    asyncio.run(go())
    assert "cannot write the agent's state" in capsys.readouterr().out


def test_a_coordinator_that_cannot_write_tells_nobody_and_heals(
    tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    async def go() -> None:
        node = local(tmp_path)
        co = Coordinator(node.settings, node, {}, node.state, [], lambda: None)
        full_disk(True)
        for _ in range(3):
            co.event(await node.beat(replace(BEAT, term=co.pair.term, seq=co.seq, epoch=co.pair.epoch)))
            co.seq += 1
        assert co.pair.phase in (Phase.FAILED, Phase.GATE)
        assert co.pair.desired is None
        seen = [h["text"] for h in co.history] + [h.text for h in co.pair.holds(1e9)]
        assert any("No space left" in text for text in seen), seen
        written = json.loads((tmp_path / "state/agent.json").read_text())
        assert written["generation"] == 0
        full_disk(False)
        for _ in range(4):
            co.event(await node.beat(replace(BEAT, term=co.pair.term, seq=co.seq, epoch=co.pair.epoch)))
            co.seq += 1
        assert co.pair.phase is Phase.LAUNCHING
        assert json.loads((tmp_path / "state/agent.json").read_text())["generation"] == co.pair.generation
        await node.stop()

    asyncio.run(go())


def test_a_new_gate_looks_at_the_files_anew(tmp_path: Path) -> None:
    """A file that was mended a moment ago must not make the launch be refused for its old digest."""

    async def go() -> None:
        node = local(tmp_path)
        gate = replace(BEAT, phase=Phase.GATE)
        before = (await node.beat(gate)).digest
        (tmp_path / "model/config.json").write_text("{}")
        assert (await node.beat(replace(gate, seq=2))).digest == before  # the same gate, a moment later
        assert (await node.beat(replace(gate, seq=3, epoch=2))).digest != before
        await node.stop()

    asyncio.run(go())


def test_a_running_rank_is_on_record_until_its_end_was_seen(tmp_path: Path) -> None:
    """P21: after a reset of the host the boot id tells it from a rank that ended by itself."""

    async def go() -> None:
        node = local(tmp_path)
        first = await node.beat(BEAT)
        await node.beat(replace(BEAT, seq=2, desired=1, digest=first.digest, phase=Phase.LAUNCHING))
        assert node.rank is not None
        record = json.loads((tmp_path / "state" / boot.RECORD).read_text())
        assert record["boot_id"] == "boot-1"
        await node.stop()  # in order, though nobody runs `watch` any more
        assert node.rank is None
        assert not (tmp_path / "state" / boot.RECORD).exists()
        written = json.loads((tmp_path / "state/logs/generation-00000001/exit.json").read_text())
        assert written["asked"] is True

    asyncio.run(go())


def test_the_record_of_a_reset_is_put_aside_by_the_next_start(tmp_path: Path) -> None:
    def root(boot_id: str) -> SysRoot:
        fsio.write_text(tmp_path / boot_id / "proc/sys/kernel/random/boot_id", boot_id)
        return SysRoot(tmp_path / boot_id)

    folder = tmp_path / "state"
    assert not boot.was_reset(folder, root("one"))
    boot.record_start(folder, root("one"))
    assert not boot.was_reset(folder, root("one"))
    assert boot.was_reset(folder, root("two"))
    boot.record_start(folder, root("two"))
    assert json.loads((folder / boot.LAST).read_text())["boot_id"] == "one"
    boot.record_stop(folder)
    assert not (folder / boot.RECORD).exists()


def test_a_rank_that_cannot_start_says_why_in_its_log(tmp_path: Path) -> None:
    async def go() -> None:
        node = local(tmp_path)
        node.shelf.folder.parent.mkdir(parents=True, exist_ok=True)
        first = await node.beat(BEAT)
        node.shelf.folder.write_text("a file where the folder of logs should be")
        report = await node.beat(replace(BEAT, seq=2, desired=1, digest=first.digest, phase=Phase.LAUNCHING))
        assert node.rank is None
        assert report.exit_status == 127
        assert report.exit_text
        assert not (tmp_path / "state" / boot.RECORD).exists()
        await node.stop()

    asyncio.run(go())

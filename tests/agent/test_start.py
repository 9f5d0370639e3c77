"""An agent's start and end on one node: what is in its way is one clear error; one node works too."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkloom import fsio
from sparkloom.agent.remote import Remote
from sparkloom.agent.settings import api_key, credential, limits_of
from sparkloom.agent.state import Lock
from sparkloom.cli.main import run
from sparkloom.cluster import parse
from sparkloom.errors import Exit, SparkloomError

Write = Callable[..., Path]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the cluster file of one node with stub ranks, with changes section by section."""

    def make(**changes: dict[str, Any]) -> Path:
        key = tmp_path / "agent.key"
        if not key.exists():
            fsio.write_text(key, "k" * 64 + "\n", mode=0o600)
        model = tmp_path / "model"
        fsio.write_json(model / "config.json", {"model_type": "stub"})
        values: dict[str, Any] = {
            "name": "one",
            "nodes": [{"name": "solo", "role": "head", "fabric": {"addresses": ["127.0.0.1"]}}],
            "rendezvous": {"master_port": free_port()},
            "model": {"path": str(model), "quantization": "none", "geometry": "checkpoint"},
            "drafter": {"kind": "none"},
            "api": {"port": free_port()},
            "engine": {
                "platform": "cpu",
                "dtype": "float32",
                "command": [sys.executable, "-m", "sparkloom.testing.stub_rank"],
                "cache_directory": str(tmp_path / "cache"),
            },
            "probe": {"checks": "demo", "long_prompt_tokens": 128},
            "serving": {"tool_parser": "", "reasoning_parser": ""},
            "memory": {"return_tolerance_bytes": 64 << 30},
            "liveness": {"scrape_seconds": 0.2, "idle_probe_seconds": 0.5, "answer_seconds": 10},
            "agent": {
                "port": free_port(),
                "status_port": free_port(),
                "key_file": str(key),
                "socket": str(tmp_path / "agent.sock"),
                "state_directory": str(tmp_path / "state"),
                "lease_seconds": 3,
                "heartbeat_seconds": 0.3,
            },
        }
        for section, more in changes.items():
            values[section] = {**values[section], **more}
        fsio.write_json(tmp_path / "cluster.json", values)
        return tmp_path / "cluster.json"

    return make


def agent(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the agent in this process until its error; its exit code and what it said."""
    capsys.readouterr()
    code = run(["agent", str(file), "--node", "solo"])
    return code, capsys.readouterr().err


@pytest.fixture
def running(write: Write, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real agent of one node as a process, ready."""
    with (tmp_path / "agent.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "sparkloom", "agent", str(write()), "--node", "solo"],
            stdout=log,
            stderr=log,
            env={k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY")},
        )
    try:
        wait(tmp_path, lambda v: bool(v.get("ready")))
        yield child
    finally:
        child.terminate()
        child.wait(60)


def wait(folder: Path, ended: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
    limit = time.monotonic() + seconds
    view: dict[str, Any] = {}
    while time.monotonic() < limit:
        try:
            with Remote(folder / "agent.sock") as remote:
                view = remote.status()
        except SparkloomError:
            view = {}
        if ended(view):
            return view
        time.sleep(0.1)
    raise AssertionError(f"{view}\n{(folder / 'agent.log').read_text()}")


def test_a_cluster_of_one_node_serves_and_a_second_agent_leaves_it_alone(
    running: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P38: two owners of one rank race; the second one is refused before it touches anything."""
    before = wait(tmp_path, lambda v: bool(v.get("ready")))
    assert [n["name"] for n in before["nodes"]] == ["solo"]
    code, said = agent(tmp_path / "cluster.json", capsys)
    assert code == Exit.RESOURCE
    assert "another agent of this node is running" in said
    assert "agent.state_directory" in said
    assert "mend:" in said
    after = wait(tmp_path, lambda v: bool(v.get("ready")))
    assert after["generation"] == before["generation"] == 1
    wait(tmp_path, lambda v: v["nodes"][0]["facts"]["rank"]["processes"] > 1)

    # Files that break under a running pair change nothing; a restart is refused for them.
    good = (tmp_path / "cluster.json").read_text()
    (tmp_path / "cluster.json").write_text("{ half")
    time.sleep(2.0)
    assert run(["restart", "--socket", str(tmp_path / "agent.sock")]) == Exit.CHECK
    said = capsys.readouterr().err
    assert "restart was refused and nothing was changed" in said
    assert "cluster.json" in said
    (tmp_path / "cluster.json").write_text(good)
    after = wait(tmp_path, lambda v: bool(v.get("ready")))
    assert (after["generation"], after["restarts"]) == (1, {})

    running.terminate()
    assert running.wait(60) == 0
    exits = json.loads((tmp_path / "state/logs/generation-00000001/exit.json").read_text())
    assert exits["asked"] is True
    assert not (tmp_path / "agent.sock").exists()
    Lock(tmp_path / "state").take()  # free again


@pytest.mark.parametrize(("field", "what"), [("port", "agent.port"), ("status_port", "agent.status_port")])
def test_a_port_in_use_is_named(
    write: Write, capsys: pytest.CaptureFixture[str], field: str, what: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = agent(write(agent={field: port}), capsys)
    assert code == Exit.RESOURCE
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert f"field: {what}" in said
    assert "mend:" in said


def test_a_state_folder_that_cannot_be_used_is_named(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    code, said = agent(write(agent={"state_directory": str(tmp_path / "file/state")}), capsys)
    assert code == Exit.RESOURCE
    for text in ("Not a directory", "field: agent.state_directory", str(tmp_path / "file/state"), "mend:"):
        assert text in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere: a read-only folder is none to it")
def test_a_read_only_state_folder_is_named(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir(mode=0o500)
    code, said = agent(write(), capsys)
    assert code == Exit.RESOURCE
    assert "Permission denied" in said


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (None, 0o600, "cannot read the agents' key: No such file"),
        ("", 0o600, "the agents' key has 0 bytes, 32 are needed"),
        ("k" * 64, 0o644, "the agents' key can be read by everybody"),
    ],
)
def test_a_bad_agent_key_is_named(
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    mode: int,
    text: str,
) -> None:
    file = write()
    (tmp_path / "agent.key").unlink()
    if content is not None:
        (tmp_path / "agent.key").write_text(content)
        (tmp_path / "agent.key").chmod(mode)
    code, said = agent(file, capsys)
    assert code in (Exit.RESOURCE, Exit.INPUT)
    for expected in (text, f"file: {tmp_path / 'agent.key'}", "field: agent.key_file", "mend:"):
        assert expected in said
    assert "k" * 32 not in said


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "No such file"), (b"", "is empty"), (b"\n\n", "is empty"), (b"\xff", "no text")],
)
def test_a_bad_api_key_file_is_named(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / "api.key").write_bytes(content)
    code, said = agent(write(api={"key_file": str(tmp_path / "api.key")}), capsys)
    assert code in (Exit.RESOURCE, Exit.INPUT)
    for expected in (text, f"file: {tmp_path / 'api.key'}", "field: api.key_file", "mend:"):
        assert expected in said


def test_an_unknown_node_lists_the_known_ones(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", str(write()), "--node", "spark-c"]) == Exit.USAGE
    assert "use one of solo" in capsys.readouterr().err


def test_a_credential_of_the_service_manager_wins(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "credentials"
    given.mkdir()
    (given / "api.key").write_text("from-the-manager\n")
    (tmp_path / "api.key").write_text("from-the-file\n")
    cluster = parse(json.loads(write(api={"key_file": str(tmp_path / "api.key")}).read_text()))
    assert api_key(cluster) == "from-the-file"
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given))
    assert api_key(cluster) == "from-the-manager"
    assert credential("agent.key", "/etc/x") == Path("/etc/x")


def test_gate_drain_and_stable_times_come_from_the_cluster_file() -> None:
    nodes = [{"name": "solo", "role": "head", "fabric": {"addresses": ["127.0.0.1"]}}]
    plain = limits_of(parse({"nodes": nodes}))
    assert (plain.gate_s, plain.drain_s, plain.stable_s) == (900.0, 300.0, 600.0)
    changed = limits_of(
        parse(
            {
                "nodes": nodes,
                "deadlines": {"gate_seconds": 60, "drain_seconds": 5},
                "restart": {"stable_seconds": 30},
            }
        )
    )
    assert (changed.gate_s, changed.drain_s, changed.stable_s) == (60.0, 5.0, 30.0)


def test_operators_commands_start_no_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """P38: the service manager owns the agent and the agent owns the rank; a command only asks."""
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **_: started.append(args))
    monkeypatch.setattr(os, "posix_spawn", lambda *args, **_: started.append(args))
    monkeypatch.setattr(os, "fork", lambda: started.append("fork"))
    for name in ("start", "stop", "restart", "drain", "status", "logs"):
        assert run([name, "--socket", "/nowhere/agent.sock"]) == Exit.RESOURCE
    assert started == []


def test_a_live_view_goes_on_while_the_agent_is_away(tmp_path: Path) -> None:
    """`status --watch` draws what it gets, also "no agent", until it is interrupted."""
    from sparkloom.cli import status

    views = iter([{"phase": "ready", "ready": True, "nodes": []}, None, {"phase": "gate", "nodes": []}])
    drawn: list[str] = []

    class Away:
        def status(self) -> dict[str, Any]:
            view = next(views, "end")
            if view is None:
                raise SparkloomError("no agent runs here", code=Exit.RESOURCE)
            if view == "end":
                raise KeyboardInterrupt
            return view  # type: ignore[return-value]

    with pytest.raises(KeyboardInterrupt):
        status.watch_agent(Away(), lambda shown: drawn.append(str(shown["phase"])), every=0.0)  # type: ignore[arg-type]
    assert drawn == ["ready", "no agent", "gate"]


def test_the_lock_is_one_agent_s(tmp_path: Path) -> None:
    first, second = Lock(tmp_path), Lock(tmp_path)
    first.take()
    with pytest.raises(SparkloomError, match="another agent"):
        second.take()
    first.drop()
    second.take()
    second.drop()

"""The demo's course with fake ranks: the good end, every bad one, and nothing left after any of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from sparkloom.demo import launch, preflight
from sparkloom.demo.models import TinyGlm
from sparkloom.demo.run import Settings, curl_line, progress_of
from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks import Node, listener, why_no_namespaces

HERE = Path(__file__).parent


@pytest.fixture(params=["netns", "loopback"])
def nodes(request: pytest.FixtureRequest) -> str:
    if request.param == "netns" and (reason := why_no_namespaces()):
        pytest.skip(f"no namespaces here: {reason}")
    return str(request.param)


def free_port() -> int:
    with listener(0) as s:
        return int(s.getsockname()[1])


def begin(tmp_path: Path, nodes: str, **change: Any) -> tuple[subprocess.Popen[str], int]:
    port = free_port()
    arguments = {
        "nodes": nodes,
        "port": port,
        "once": True,
        "answer": "right",
        "behaviour": "",
        "key": "",
        "logs": str(tmp_path / "logs"),
        "timeout": 60.0,
    } | change
    env = dict(os.environ, XDG_RUNTIME_DIR=str(tmp_path))
    command = [sys.executable, str(HERE / "run_fake.py"), json.dumps(arguments)]
    return (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env),
        arguments["port"],
    )


def finish(process: subprocess.Popen[str], tmp_path: Path) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    assert list((tmp_path / "sparkloom").iterdir()) == []  # no record of a run is left
    mine = f"{tmp_path}/logs"
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if mine in _text(p)]
    return process.returncode, out, err


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_once(tmp_path: Path, nodes: str) -> None:
    code, out, err = finish(begin(tmp_path, nodes, key="sk-secret")[0], tmp_path)
    assert code == 0, err
    found = json.loads(out)
    assert found["nodes"] == nodes
    assert found["answers"]["What is the capital of France?"] == "Paris."
    assert found["tokens_per_s"] > 1
    assert set(found["memory_mib"]) == {"head", "worker"}
    assert found["memory_mib"]["head"] > 1
    assert list(found["phases"]) == ["preflight", "model smol", "nodes", "ranks up", "checked answer", "stop"]
    assert "word0 word1 word2 word3" in err
    assert "Authorization: Bearer $VLLM_API_KEY" in err.replace("\n", " ")
    assert "sk-secret" not in err + out


def test_wrong_answer_is_no_success(tmp_path: Path) -> None:
    code, out, _ = finish(begin(tmp_path, "loopback", answer="wrong")[0], tmp_path)
    assert code == Exit.RANK
    assert "its answer is wrong" in out
    assert "London" in out


def test_worker_that_dies_in_start_up(tmp_path: Path, nodes: str) -> None:
    code, out, _ = finish(begin(tmp_path, nodes, behaviour="die-1")[0], tmp_path)
    assert code == Exit.RANK
    assert "rank worker ended with status 0: RuntimeError: no such shard" in out
    assert "worker.log" in out
    assert "mend:" in out


def test_pair_that_does_not_come_up(tmp_path: Path) -> None:
    code, out, _ = finish(begin(tmp_path, "loopback", behaviour="silent", timeout=1.0)[0], tmp_path)
    assert code == Exit.RANK
    assert "did not come up within 1 s" in out
    assert "head.log" in out
    assert "worker.log" in out


def until_served(process: subprocess.Popen[str], port: int) -> None:
    assert process.stderr
    for line in process.stderr:
        if "Serving until Ctrl-C" in line:
            return
    raise AssertionError("never served")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_serving(tmp_path: Path, nodes: str, sig: int) -> None:
    process, port = begin(tmp_path, nodes, once=False)
    until_served(process, port)
    assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    process.send_signal(sig)
    code, _, _ = finish(process, tmp_path)
    assert code == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)


def test_second_signal_hurries_the_stop(tmp_path: Path) -> None:
    """Ranks that ignore SIGTERM would take 22 s to go; a second Ctrl-C kills them at once, whole."""
    process, port = begin(tmp_path, "loopback", once=False, behaviour="immune")
    until_served(process, port)
    process.send_signal(signal.SIGINT)
    log = tmp_path / "logs/worker.log"
    while "SIGTERM ignored" not in log.read_text():
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    assert finish(process, tmp_path)[0] == 0
    assert time.monotonic() - asked < 14


def test_signal_in_start_up(tmp_path: Path) -> None:
    process, _ = begin(tmp_path, "loopback", behaviour="silent")
    end = time.monotonic() + 20
    while not (tmp_path / "logs/worker.log").exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert finish(process, tmp_path)[0] == Exit.INTERRUPTED


def test_rank_that_dies_while_serving(tmp_path: Path, nodes: str) -> None:
    trigger = tmp_path / "trigger"
    process, port = begin(tmp_path, nodes, once=False, answer=str(trigger), behaviour="die-late")
    until_served(process, port)
    trigger.touch()
    code, out, _ = finish(process, tmp_path)
    assert code == Exit.RANK
    assert "rank worker ended with status 0" in out
    assert "Worker_TP1 died" in out


def test_port_taken(tmp_path: Path) -> None:
    with listener(0) as taken:
        port = taken.getsockname()[1]
        code, out, _ = begin_and_fail(tmp_path, port)
    assert code == Exit.RESOURCE
    assert f"port {port} of 127.0.0.1 is taken" in out
    assert "PORT=8889" in out


def begin_and_fail(tmp_path: Path, port: int) -> tuple[int, str, str]:
    process, _ = begin(tmp_path, "loopback", port=port)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_namespaces_asked_for_without_permission(tmp_path: Path) -> None:
    env = dict(os.environ, PATH="/nowhere", XDG_RUNTIME_DIR=str(tmp_path))
    code = "from sparkloom.ranks import Pair; from sparkloom.errors import SparkloomError\n"
    code += "try: Pair('netns')\nexcept SparkloomError as e: print(e); raise SystemExit(int(e.code))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.RESOURCE
    assert "may not make network namespaces" in done.stdout
    assert "--nodes loopback" in done.stdout
    assert list((tmp_path / "sparkloom").iterdir()) == []
    automatic = (
        code.replace("'netns'", "'auto'")
        .replace("try: ", "try: p = ")
        .replace("\nexcept", "; print(p.mode, p.reason)\nexcept")
    )
    done = subprocess.run(
        [sys.executable, "-c", automatic], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("loopback the program `ip`")


SPEC = launch.Spec(Path("/model"), served="smol", speculative={"method": "mtp"}, extra=("--x",))
PLACES = (Node("head", "10.77.0.1", "a", "a"), Node("worker", "10.77.0.2", "b", "b"))


def test_command_lines() -> None:
    (head, head_env), (worker, worker_env) = launch.ranks(SPEC, PLACES, 29501, 8000, 2, "sk-secret")
    assert "sk-secret" not in " ".join(head + worker)
    assert head_env["VLLM_API_KEY"] == "sk-secret"
    assert "sk-secret" not in worker_env.values()
    assert head[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
    assert worker[-1] == "--headless"
    common = head[:-4]
    number = common.index("--node-rank") + 1
    assert common[:number] + common[number + 1 :] == worker[:-1][:number] + worker[:-1][number + 1 :]
    for flag, value in (
        ("-tp", "2"),
        ("--nnodes", "2"),
        ("--distributed-executor-backend", "mp"),
        ("--master-addr", "10.77.0.1"),
        ("--dtype", "float32"),
        ("--distributed-timeout-seconds", "120"),
        ("--cpu-distributed-timeout-seconds", "120"),
    ):
        assert head[head.index(flag) + 1] == value
    assert head_env["OMP_NUM_THREADS"] == "1"
    alone = launch.argv(SPEC, 0, "", 0, 8000, nodes=1)
    assert "-tp" not in alone
    assert "--nnodes" not in alone


def test_tiny_glm_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = TinyGlm().prepare(lambda _: None)
    (first.model / "config.json").write_text("half")
    again = TinyGlm().prepare(lambda _: None)
    assert json.loads((again.model / "config.json").read_text())["model_type"]
    assert again.speculative == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize("option", [["--layers", "2"], ["--all-layers"]])
def test_tiny_glm_has_no_layers_to_encode(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from sparkloom.cli.main import run

    assert run(["demo", "run", "--model", "tiny-glm", *option]) == Exit.USAGE
    assert "--model smol" in capsys.readouterr().err


def test_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "from-env")
    assert preflight.read_key(None) == "from-env"
    path = tmp_path / "key"
    path.write_text("sk-abc\n")
    assert preflight.read_key(path) == "sk-abc"
    for bad in ("", "  \n", "two words", "naïve", "a\nb"):
        path.write_text(bad)
        with pytest.raises(SparkloomError) as caught:
            preflight.read_key(path)
        assert caught.value.code == Exit.INPUT
        assert not bad.strip() or bad not in str(caught.value)
    with pytest.raises(SparkloomError, match="cannot be read"):
        preflight.read_key(tmp_path / "none")


def test_memory_of_machine_and_group(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:    8388608 kB\n")
    assert preflight.available_memory(tmp_path) == 8 << 30
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    group = tmp_path / "sys/fs/cgroup/a"
    (group / "b").mkdir(parents=True)
    (group / "memory.max").write_text(str(4 << 30))
    (group / "memory.current").write_text(str(3 << 30))
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {1 << 30}\n")
    (group / "b/memory.max").write_text("max\n")
    assert preflight.available_memory(tmp_path) == 2 << 30
    preflight.check_memory(2 << 30, tmp_path)
    with pytest.raises(SparkloomError, match=r"too little memory: 2\.0 GiB") as caught:
        preflight.check_memory(3 << 30, tmp_path)
    assert caught.value.code == Exit.RESOURCE


def test_curl_line_names_the_key_file() -> None:
    line = curl_line(8888, "smol", Settings(api_key="sk-x", key_file=Path("key.txt")))
    assert "$(cat key.txt)" in line
    assert "sk-x" not in line
    assert "Authorization" not in curl_line(8888, "smol", Settings())


def test_progress(tmp_path: Path) -> None:
    log = tmp_path / "head.log"
    assert progress_of(log) == "starting"
    log.write_text("INFO non-default args: {}\nINFO Starting to load model\n")
    assert progress_of(log) == "loading weights"

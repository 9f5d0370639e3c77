"""Every client example of docs/clients.md against the fake server; every gateway file against its schema."""

from __future__ import annotations

import asyncio
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

from client_examples import FOLDER, ROOT, example, interpreter

from sparkloom.testing.fake_openai import FakeServer

KEY, MODEL = "sk-clients", "GLM-5.3-Flash-EXL3"
PARIS = "The capital of France is Paris."
SAYS = {
    "openai_chat.py": [f"whole: {PARIS}", f"streamed: {PARIS}", "tokens: 6 in, 6 out"],
    "openai_tools.py": [
        "asked for: get_weather {'city': 'Paris'}",
        'answer: The tool says: {"city": "Paris"',
    ],
    "openai_structured.py": ["{'city': 'word', 'capital': True}"],
    "openai_vision.py": ["The picture is 64 pixels wide and 64 high."],
    "langchain_chat.py": [
        f"whole: {PARIS}",
        f"streamed: {PARIS}",
        "tool: get_weather {'city': 'Paris'} -> 21 degrees in Paris",
    ],
    "llama_index_chat.py": [f"whole: {PARIS}", f"streamed: {PARIS}"],
    "litellm_chat.py": [f"whole: {PARIS}", f"streamed: {PARIS}"],
    "anthropic_messages.py": [f"whole: {PARIS}", f"streamed: {PARIS}", "tokens: 6 in, 6 out"],
    "chat.sh": [PARIS],
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    """A fake server with a key, in a thread of its own."""
    loop = asyncio.new_event_loop()
    fake = FakeServer(model=MODEL, key=KEY)
    ready = threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(fake.start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(fake.stop())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield fake
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_every_example_is_run() -> None:
    runnable = {p.name for p in FOLDER.iterdir() if p.suffix in (".py", ".sh")}
    assert runnable == set(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_gets_its_answer(server: FakeServer, name: str) -> None:
    if name.endswith(".py") and interpreter(name) is None:
        pytest.skip("the client libraries are not installed: run `make clients`")
    shown = example(name, server.url, KEY, MODEL)
    for words in SAYS[name]:
        assert words in shown


def test_wrong_key_is_an_error_that_says_so(server: FakeServer) -> None:
    with pytest.raises(AssertionError, match="401"):
        example("openai_chat.py", server.url, "sk-wrong", MODEL)
    with pytest.raises(AssertionError, match="Unauthorized"):
        example("chat.sh", server.url, "sk-wrong", MODEL)


def test_picture_from_a_file(server: FakeServer, tmp_path: Path) -> None:
    png = tmp_path / "a.png"
    png.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480))
    assert "640 pixels wide and 480 high" in example("openai_vision.py", server.url, KEY, MODEL, str(png))
    png.write_bytes(b"no picture")
    with pytest.raises(AssertionError, match="cannot be read"):
        example("openai_vision.py", server.url, KEY, MODEL, str(png))


def test_key_is_in_no_process_list(server: FakeServer) -> None:
    """curl gets its key by a file descriptor: xtrace shows every word of its command line."""
    env = {**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY, "MODEL": MODEL}
    traced = subprocess.run(
        ["bash", "-x", str(FOLDER / "chat.sh")], env=env, capture_output=True, text=True, check=True
    )
    assert PARIS in traced.stdout
    (curl,) = [line for line in traced.stderr.splitlines() if line.startswith("+ curl")]
    assert KEY not in curl


def test_page_shows_every_file() -> None:
    page = (ROOT / "docs/clients.md").read_text()
    for path in FOLDER.iterdir():
        assert f"examples/clients/{path.name}" in page, path.name


# --- gateways: keys and forms as the tools' own references list them (read 2026-12-01) ---

LLAMA_SWAP = {
    "healthCheckTimeout": int,
    "logLevel": str,
    "models": dict,
    "peers": dict,
}
LLAMA_SWAP_MODEL = {
    "cmd": str,
    "cmdStop": str,
    "proxy": str,
    "checkEndpoint": str,
    "ttl": int,
    "unloadTimeout": int,
    "concurrencyLimit": int,
    "capabilities": dict,
}
LLAMA_SWAP_CAPABILITIES = {"in": list, "out": list, "tools": bool, "context": int}
LLAMA_SWAP_PEER = {"proxy": str, "apiKey": str, "models": list, "timeouts": dict}
TIMEOUTS = {"connect", "keepalive", "responseHeader", "tlsHandshake", "expectContinue", "idleConn"}
LITELLM = {"model_list", "litellm_settings", "router_settings", "general_settings", "environment_variables"}
OPEN_WEBUI = {
    "ENABLE_OPENAI_API",
    "OPENAI_API_BASE_URL",
    "OPENAI_API_KEY",
    "ENABLE_OLLAMA_API",
    "ENABLE_TITLE_GENERATION",
    "ENABLE_TAGS_GENERATION",
    "ENABLE_FOLLOW_UP_GENERATION",
    "ENABLE_PERSISTENT_CONFIG",
    "AIOHTTP_CLIENT_TIMEOUT",
}


def load(name: str) -> dict[str, Any]:
    value = yaml.safe_load((FOLDER / name).read_text())
    assert isinstance(value, dict)
    return value


def held(value: dict[str, Any], form: dict[str, type]) -> None:
    """Only known keys, each of its type."""
    for key, inner in value.items():
        assert key in form, key
        assert type(inner) is form[key], key


@pytest.mark.parametrize("name", ["llama-swap.yaml", "llama-swap-peer.yaml"])
def test_llama_swap_file(name: str) -> None:
    value = load(name)
    held(value, LLAMA_SWAP)
    assert "models" in value  # the tool refuses a file without it
    assert value.get("healthCheckTimeout", 15) >= 15
    for model in value["models"].values():
        held(model, LLAMA_SWAP_MODEL)
        held(model["capabilities"], LLAMA_SWAP_CAPABILITIES)
        assert set(model["capabilities"]["in"]) <= {"text", "audio", "image"}
        assert re.fullmatch("/.*|none", model["checkEndpoint"])
    for peer in value.get("peers", {}).values():
        held(peer, LLAMA_SWAP_PEER)
        assert set(peer["timeouts"]) <= TIMEOUTS
        assert not peer["proxy"].endswith("/v1")  # the requested path is appended


def test_litellm_proxy_file() -> None:
    value = load("litellm-proxy.yaml")
    assert set(value) <= LITELLM
    for row in value["model_list"]:
        assert set(row) <= {"model_name", "litellm_params", "model_info"}
        assert row["litellm_params"]["model"] == f"openai/{row['model_name']}"
        assert row["litellm_params"]["api_key"].startswith("os.environ/")
    assert value["general_settings"]["master_key"].startswith("os.environ/")


def test_litellm_router_takes_the_file(server: FakeServer) -> None:
    """The gateway's own router, given the file's model list, reaches the server with the key it names."""
    python = interpreter("litellm_chat.py")
    if python is None:
        pytest.skip("the client libraries are not installed: run `make clients`")
    code = (
        "import sys, yaml, litellm; rows = yaml.safe_load(open(sys.argv[1]))['model_list'];"
        "rows[0]['litellm_params']['api_base'] = sys.argv[2];"
        "router = litellm.Router(model_list=rows, num_retries=0);"
        "r = router.completion(model=rows[0]['model_name'], max_tokens=20,"
        " messages=[{'role': 'user', 'content': 'What is the capital of France?'}]);"
        "print(r.choices[0].message.content)"
    )
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "SPARKLOOM_API_KEY": KEY}
    command = [str(python), "-c", code, str(FOLDER / "litellm-proxy.yaml"), f"{server.url}/v1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert PARIS in done.stdout, done.stderr


def test_open_webui_files() -> None:
    compose = load("open-webui.compose.yaml")
    service = compose["services"]["open-webui"]
    assert re.search(r":v\d+\.\d+\.\d+$", service["image"])  # no moving tag
    assert service["env_file"] == "open-webui.env"
    assert (FOLDER / service["env_file"]).exists()
    assert {v.split(":")[0] for v in service["volumes"]} <= set(compose["volumes"])
    lines = [x for x in (FOLDER / "open-webui.env").read_text().splitlines() if x and not x.startswith("#")]
    names = {line.split("=", 1)[0] for line in lines}
    assert names == OPEN_WEBUI

"""A stub of one vLLM rank, for tests of the agent: the same flags, log lines, ports and habits, no model.

Habits of the real one that matter: a worker never notices that its head is gone; a head answers `/health`
200 beside a dead worker until a request comes, then says 500 and ends with status 0; a stopped worker makes
requests hang for ever; the head has child processes which outlive a SIGKILL of their parent.

`stub.json` in the model folder scripts it: {"mode": "ok", "load_s": 0.2, "prefill_s": 0, "per_token_s": 0}.
It is read again at each request, so that a test can turn a healthy engine into a wrong one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from sparkloom.testing.fake_openai import FakeServer, Mode, Timing


def say(text: str) -> None:
    """One log line."""
    print(f"INFO stub {time.strftime('%H:%M:%S')} {text}", flush=True)


def script(model: Path) -> dict[str, Any]:
    """The script in the model folder."""
    try:
        return dict(json.loads((model / "stub.json").read_text()))
    except (OSError, ValueError):
        return {}


class Link:
    """The head's connections to its workers; one step goes to all and waits for all, without a time limit."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        self.lock = threading.Lock()

    def step(self) -> bool:
        """Whether every worker took part."""
        with self.lock:
            try:
                for peer in self.sockets:
                    peer.sendall(b"s")
                return all(peer.recv(1) == b"s" for peer in self.sockets)
            except OSError:
                return False


class StubServer(FakeServer):
    """The fake server with a collective behind each generation."""

    def __init__(self, folder: Path, link: Link, **options: Any) -> None:
        super().__init__(**options)
        self.folder, self.link = folder, link

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = script(self.folder)
        self.mode = Mode(told.get("mode", "ok"))
        self.timing = Timing(0.0, float(told.get("per_token_s", 0.0)), float(told.get("prefill_s", 0.0)))
        if not await asyncio.to_thread(self.link.step):
            self.state.dead = True
            say("ERROR EngineDeadError: EngineCore encountered an issue. See stack trace above.")
            asyncio.get_running_loop().call_later(0.3, os._exit, 0)
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        return await super()._answer(request, body)


def join(options: argparse.Namespace, generation: str) -> Link | socket.socket:
    """Meet the other ranks; a rank of another generation is turned away."""
    address = (options.master_addr, options.master_port)
    say(f"world_size={options.nnodes} rank={options.node_rank} distributed_init_method=tcp://{address[0]}")
    if options.node_rank:
        while True:
            try:
                peer = socket.create_connection(address, 2.0)
                break
            except OSError:
                time.sleep(0.1)
        peer.settimeout(None)
        peer.sendall(json.dumps({"generation": generation, "rank": options.node_rank}).encode() + b"\n")
        if peer.makefile("rb").readline().strip() != b"welcome":
            say("ERROR RuntimeError: the rendezvous refused this rank: its generation is over")
            sys.exit(1)
        return peer
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen()
    joined: dict[int, socket.socket] = {}
    while len(joined) < options.nnodes - 1:
        peer, _ = listener.accept()
        hello = json.loads(peer.makefile("rb").readline() or b"{}")
        if hello.get("generation") != generation:
            say(f"refused a rank of generation {hello.get('generation')}")
            peer.sendall(b"stale\n")
            peer.close()
            continue
        peer.sendall(b"welcome\n")
        joined[int(hello["rank"])] = peer
    listener.close()
    return Link(list(joined.values()))


def load(options: argparse.Namespace) -> None:
    """The phases of a start, as vLLM logs them."""
    told = script(options.model)
    part = float(told.get("load_s", 0.2)) / 4
    say(f"rank {options.node_rank} in world size {options.nnodes} is assigned as DP rank 0, PP rank 0")
    say("Starting to load model stub...")
    time.sleep(part)
    say(f"Model loading took {1.25 + options.node_rank:.2f} GiB memory and {part:.6f} seconds")
    time.sleep(part)
    say(f"Available KV cache memory: {3.5 - 0.5 * options.node_rank:.2f} GiB")
    if not options.node_rank:
        say("GPU KV cache size: 65,536 tokens, 128 blocks")
        say("Maximum concurrency for 2,048 tokens per request: 32.00x")
    time.sleep(part)
    say("Graph capturing finished in 1 secs, took 0.10 GiB")
    time.sleep(part)


def serve_head(options: argparse.Namespace, link: Link) -> None:
    """Serve HTTP until SIGTERM."""

    async def go() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        server = StubServer(
            options.model,
            link,
            model=options.served_model_name,
            key=os.environ.get("VLLM_API_KEY"),
            host=options.host,
            port=options.port,
        )
        await server.start()
        say("Application startup complete.")
        await ended.wait()
        os._exit(0)

    asyncio.run(go())


def serve_worker(peer: socket.socket) -> None:
    """Answer steps; without a head, live on in silence as the real one does."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while data := _receive(peer):
        peer.sendall(data)
    while True:
        time.sleep(3600)


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1)
    except OSError:
        return b""


def main() -> None:
    """Entry point; flags of `vllm serve` that mean nothing here are ignored."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model", type=Path)
    parser.add_argument("--served-model-name", default="stub")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8888)
    options, _ = parser.parse_known_args()
    if not (options.model / "config.json").is_file():
        say(f"ERROR ValueError: {options.model.name} has no config.json: not a model folder")
        sys.exit(1)
    subprocess.Popen(["sleep", "1000000"])  # the engine core that survives its parent
    met = join(options, os.environ.get("SPARKLOOM_GENERATION", "0"))
    load(options)
    if isinstance(met, Link):
        serve_head(options, met)
    else:
        serve_worker(met)


if __name__ == "__main__":
    main()

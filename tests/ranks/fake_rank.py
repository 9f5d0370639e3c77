"""A stand-in for a vLLM rank: makes the kinds of children that are hard to end.

usage: fake_rank.py BEHAVIOUR... (see the functions); prints `ready PID...` when its children are there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import resource_tracker, shared_memory

SLEEP = "import time; time.sleep(600)"
pids: list[int] = []


def child() -> None:
    pids.append(subprocess.Popen([sys.executable, "-S", "-c", SLEEP]).pid)


def stubborn() -> None:
    """A child that ignores SIGTERM, in a session of its own."""
    code = f"import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); {SLEEP}"
    made = subprocess.Popen(
        [sys.executable, "-S", "-c", code], start_new_session=True, stdout=subprocess.PIPE, env={}
    )
    assert made.stdout
    made.stdout.readline()
    pids.append(made.pid)


def daemon() -> None:
    """A grandchild in a session of its own, without our environment, whose parent is gone."""
    apart = "start_new_session=True, stdout=-3, env={}"
    made = f"subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], {apart})"
    code = f"import subprocess, sys; print({made}.pid)"
    pids.append(int(subprocess.check_output([sys.executable, "-S", "-c", code])))


def shm() -> None:
    """A named shared memory segment that nobody unlinks."""
    segment = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    globals()["keep"] = segment
    print("shm", segment.name, flush=True)


def deaf() -> None:
    """Ignore the first SIGTERM, end at the second, as a vLLM head does in start-up."""
    seen: list[int] = []

    def handler(*_: object) -> None:
        seen.append(1)
        print("SIGTERM", len(seen), flush=True)
        if len(seen) == 2:
            os._exit(0)

    signal.signal(signal.SIGTERM, handler)


def immune() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def serve() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"hello from {os.environ['VLLM_HOST_IP']}".encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", int(os.environ["FAKE_PORT"])), Handler)
    print("ready", os.getpid(), *pids, flush=True)
    server.serve_forever()


def fail() -> None:
    print("RuntimeError: the model has a hole", flush=True)
    print("EngineCore encountered an issue", flush=True)
    sys.exit(0)  # as vLLM does


for behaviour in sys.argv[1:]:
    globals()[behaviour]()
print("ready", os.getpid(), *pids, flush=True)
while True:
    time.sleep(600)

"""A stand-in for a vLLM rank: the head answers the API, the worker waits.

argv: rank port answer behaviour
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

rank, port, answer, behaviour = sys.argv[1:]
if behaviour == "immune":
    signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"SIGTERM ignored\n") and None)
if behaviour == f"die-{rank}":
    print("ERROR worker.py:1 RuntimeError: no such shard", flush=True)
    sys.exit(0)
if rank == "1" or behaviour in ("silent", "die-1"):
    print("waiting", flush=True)
    while True:
        if behaviour == "die-late" and os.path.exists(answer):
            print("Worker_TP1 died", flush=True)
            os._exit(0)
        time.sleep(0.05)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply(200, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = os.environ["VLLM_API_KEY"]
        if key and self.headers["authorization"] != f"Bearer {key}":
            return self.reply(401, b'{"error": "Unauthorized"}')
        if not body.get("stream"):
            message = {"message": {"content": "Paris." if answer == "right" or "/" in answer else "London."}}
            return self.reply(200, json.dumps({"choices": [message]}).encode())
        self.send_response(200)
        self.end_headers()
        for n in range(4):
            event = {"choices": [{"delta": {"content": f"word{n} "}}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.01)
        usage = {"choices": [], "usage": {"completion_tokens": 4}}
        self.wfile.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        return None

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


print("Application startup complete", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()

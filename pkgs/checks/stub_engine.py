"""Stands in for one vLLM rank: the head answers like an OpenAI server, the worker only waits for its head."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = "The capital of France is Paris."


def option(name: str, default: str) -> str:
    """Value of `--name VALUE` or `--name=VALUE` in the arguments."""
    for index, argument in enumerate(sys.argv):
        if argument == name:
            return sys.argv[index + 1]
        if argument.startswith(name + "="):
            return argument.partition("=")[2]
    return default


class Handler(BaseHTTPRequestHandler):
    """The routes that the agent and its probe ask."""

    protocol_version = "HTTP/1.1"
    tokens = 0

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the log belongs to phases."""

    def send(self, body: str, kind: str = "application/json") -> None:
        """One whole answer."""
        data = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """Health, models and metrics."""
        if self.path == "/metrics":
            counters = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
            self.send("".join(f"{name} {Handler.tokens}\n" for name in counters), "text/plain")
        elif self.path == "/v1/models":
            self.send(json.dumps({"object": "list", "data": [{"id": option("--served-model-name", "stub")}]}))
        else:
            self.send("{}")

    def do_POST(self) -> None:
        """A chat answer, streamed when asked for."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.tokens += 8
        usage = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
        if request.get("stream"):
            chunk = {"choices": [{"index": 0, "delta": {"content": ANSWER}, "finish_reason": "stop"}]}
            self.send(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream")
            return
        message = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "message": message, "text": ANSWER, "finish_reason": "stop"}
        self.send(json.dumps({"choices": [choice], "usage": usage}))


if "--headless" in sys.argv:
    while True:
        time.sleep(1)
print("Application startup complete.", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(option("--port", "8888"))), Handler).serve_forever()

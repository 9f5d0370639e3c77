"""Picture of the real status page with made-up facts: `python -m sparkloom.testing.status_picture OUT.png`.

Needs Chromium. The facts are invented and say so in the picture; nothing in it was measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from sparkloom.errors import Exit, SparkloomError

GIB = 1 << 30


def node(name: str, role: str, used: float) -> dict[str, Any]:
    """One node's part of the status document."""
    host = {"mem_total": 120 * GIB, "mem_available": int((120 - used) * GIB), "swap_used": 0}
    rank = {"uptime_s": 7380, "memory": int((used - 6) * GIB), "transport": "NET/IB", "kv_gib": 11.5}
    facts = {"host": host, "rank": rank}
    return {"name": name, "role": role, "reachable": True, "alive": True, "rank_phase": "up", "facts": facts}


def document(now: float) -> dict[str, Any]:
    """A status document of a healthy pair that came back once, in the form of `agent.view`."""
    checks = (("known-answer", 1.2), ("stream", 1.4), ("tool-call", 2.1), ("long-prompt", 6.3))
    told = (
        (7200, "ready", 7, "", ""),
        (7400, "loading", 7, "", ""),
        (7460, "cooling", 6, "spark-worker", "rank 1 ended; both were taken down, memory is back"),
        (273_600, "ready", 6, "", ""),
    )
    return {
        "cluster": "example, made-up values",
        "model": "GLM-5.3-Flash-EXL3",
        "phase": "ready",
        "generation": 7,
        "since_s": 7200,
        "nodes": [node("spark-head", "head", 103), node("spark-worker", "worker", 100)],
        "engine": {
            "running": 2,
            "waiting": 0,
            "kv_usage": 0.34,
            "kv_tokens": 1_200_000,
            "cached_conversation_tokens": 640_000,
            "prefix_hit_rate": 0.91,
            "acceptance": [0.8, 0.6],
            "progress_age_s": 0,
        },
        "probe": [{"check": name, "level": "ok", "seconds": seconds, "seen": ""} for name, seconds in checks],
        "history": [
            {"at": now - ago, "phase": phase, "generation": generation, "node": where, "text": text}
            for ago, phase, generation, where, text in reversed(told)
        ],
    }


class Page(BaseHTTPRequestHandler):
    """The page as the agent serves it, and the made-up document."""

    def do_GET(self) -> None:
        """Answer `/` and `/status.json`."""
        status = self.path == "/status.json"
        body = json.dumps(document(time.time())) if status else page()
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if status else "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def page() -> str:
    """The agent's own page."""
    return resources.files("sparkloom.agent").joinpath("page.html").read_text()


def draw(out: Path, width: int = 1060, height: int = 880) -> None:
    """Take the picture.

    Raises:
        SparkloomError: no Chromium is installed, or it took none.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SparkloomError("no Chromium is installed", mend="install it", code=Exit.RESOURCE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as profile:
            subprocess.run(
                [
                    browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    "--virtual-time-budget=3000", f"--user-data-dir={profile}", f"--screenshot={out}",
                    f"--window-size={width},{height}", f"http://127.0.0.1:{server.server_port}/",
                ],
                capture_output=True, timeout=120, check=False,
            )  # fmt: skip
    finally:
        server.shutdown()
    if not out.exists():
        raise SparkloomError("the browser took no picture", file=out, code=Exit.INTERNAL)


def main() -> None:
    """Take the picture that the README shows."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path)
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()

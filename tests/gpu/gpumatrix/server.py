"""The `serve` task: vLLM's HTTP server as users start it, asked from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from gpumatrix import tasks

KEY = "matrix-key"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Engine arguments as command-line flags."""
    found = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            found.append(flag)
        elif value is False:
            if name not in ("enforce_eager", "disable_log_stats"):
                found.append("--no-" + name.replace("_", "-"))
        else:
            found += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


def serve(row: Mapping[str, Any]) -> dict[str, Any]:
    """Start, ask every route without the key, ask for text with it, stop."""
    import httpx

    port = free_port()
    settings = {**tasks.BASE, **row["engine"]}
    settings.pop("disable_log_stats")
    settings["enable_prompt_tokens_details"] = True
    module = "sparkloom.vllm.serve" if row["plugin"] else "vllm.entrypoints.cli.main"
    argv = [sys.executable, "-m", module, *([] if row["plugin"] else ["serve"]), row["model_path"]]
    argv += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), *flags(settings)]
    env = {**os.environ, "VLLM_API_KEY": KEY}
    env.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    start = time.perf_counter()
    process = subprocess.Popen(argv, env=env, start_new_session=True)
    base = f"http://127.0.0.1:{port}"
    bearer = {"Authorization": f"Bearer {KEY}"}
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
            try:
                if httpx.get(f"{base}/health", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.5)
        numbers: dict[str, Any] = {"ready_s": round(time.perf_counter() - start, 1)}
        numbers |= routes(base, bearer)
        generations, more = texts(base, bearer)
        numbers |= more
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    numbers["exit"] = process.returncode
    return {"generations": generations, "facts": {}, "numbers": numbers}


def routes(base: str, bearer: Mapping[str, str]) -> dict[str, Any]:
    """Which routes answer without the key."""
    import httpx

    spec = httpx.get(f"{base}/openapi.json", headers=dict(bearer), timeout=20).json()
    found: dict[str, list[str]] = {"open_posts": [], "open_gets": []}
    asked = 0
    for path, methods in spec["paths"].items():
        for method in ("post", "get"):
            if method not in methods or "{" in path:
                continue
            asked += 1
            status = httpx.request(
                method, base + path, json={} if method == "post" else None, timeout=20
            ).status_code
            if status != 401:
                found[f"open_{method}s"].append(path)
    return {"routes_asked": asked, **{name: sorted(set(paths)) for name, paths in found.items()}}


def texts(base: str, bearer: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Completions and a chat, with and without a limit."""
    import httpx

    headers = dict(bearer)

    def post(path: str, body: Mapping[str, Any]) -> Any:
        return httpx.post(base + path, json={"model": "tiny", **body}, headers=headers, timeout=120)

    prompts = [tasks.prompt(40 + 11 * i, i) for i in range(3)]
    body = {
        "prompt": prompts,
        "max_tokens": tasks.TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": tasks.TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    generations = []
    for choice in sorted(post("/v1/completions", body).json()["choices"], key=lambda c: c["index"]):
        top = [
            {int(name.removeprefix("token_id:")): value for name, value in step.items()}
            for step in choice["logprobs"]["top_logprobs"]
        ]
        generations.append(
            {"tokens": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"], "top": top}
        )
    plain = {"prompt": prompts[0], "temperature": 0, "ignore_eos": True}
    numbers = {
        "tokens_with_limit_40": post("/v1/completions", {**plain, "max_tokens": 40}).json()["usage"][
            "completion_tokens"
        ],
    }
    chat = {"messages": [{"role": "user", "content": "hello world"}], "temperature": 0, "ignore_eos": True}
    answer = post("/v1/chat/completions", chat)
    numbers["chat_status"] = answer.status_code
    numbers["tokens_without_limit"] = answer.json().get("usage", {}).get("completion_tokens")
    kept = {**plain, "prompt": tasks.prompt(tasks.LONG, 21), "max_tokens": 4}
    for name, extra in (("no_store", {"vllm_xargs": {"skip_writing_prefix_cache": 1}}), ("stored", {})):
        hits = []
        for _ in range(2):
            usage = post("/v1/completions", {**kept, **extra}).json()["usage"]
            hits.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
        numbers[f"{name}_cached_http"] = hits
    return generations, numbers

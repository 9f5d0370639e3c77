"""The API key on every route but a few harmless ones.

Why: vLLM asks for the key only under /v1, /v2, /inference and /cohere; `POST /invocations` generates text
without one, and /tokenize, /generative_scoring, /scale_elastic_ep and others are open as well.
Upstream: `AuthenticationMiddleware` in `vllm/entrypoints/serve/middleware/authenticate.py`; issue text:
"With an API key set, `POST /invocations` still generates text without it, as the middleware guards a list
of prefixes. Please guard every route but a list of harmless ones."
Tested: vLLM's own middleware with and without the hook (tests/vllm/hooks); no GPU is involved.
Default on. Drop when: vLLM guards by default and lists exceptions.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from sparkloom.vllm.hooks.shape import expect_attribute, expect_parameters

OPEN = frozenset({"/health", "/ping", "/version", "/metrics", "/load"})
"""Routes that answer without a key: no prompt goes in and no text comes out."""


def is_open(path: str) -> bool:
    """Whether a path (root path removed) answers without a key. Exact match: `/health/x` is not open."""
    return (path.rstrip("/") or "/") in OPEN


def install(_: object) -> None:
    """Guard everything, then let the open routes pass by."""
    from vllm.entrypoints.serve.middleware import authenticate

    expect_attribute("key_on_all_routes", authenticate, "GUARDED_PREFIX")
    guard: Any = authenticate.AuthenticationMiddleware
    original = guard.__call__
    expect_parameters("key_on_all_routes", original, "scope", "receive", "send")

    def call(self: Any, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        if scope["type"] in ("http", "websocket"):
            path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
            if is_open(path):
                answer: Awaitable[None] = self.app(scope, receive, send)
                return answer
        guarded: Awaitable[None] = original(self, scope, receive, send)
        return guarded

    authenticate.GUARDED_PREFIX = ("",)  # every path starts with it
    guard.__call__ = call

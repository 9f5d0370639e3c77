"""nginx runs the rendered gateway in front of a fake engine; every route is walked with and without a key."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from nixlab import HERE, REPO

CONF = (HERE / "golden/with-gateway/gateway.conf").read_text()
KEYS = REPO / "modules/gateway/keys.sh"
ALICE, BOB, ENGINE = "alice-key-0123456789", "bob-key-9876543210", "engine-key-abcdefghij"
ROUTES = dict(re.findall(r"location = (\S+) \{\n\s+if \(\$request_method !~ \^\((\w+)", CONF))
OPEN = {"/health"}
# Everything that vLLM answers beside the allowed paths, much of it without asking for a key.
CLOSED = [
    "/",
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/metrics",
    "/load",
    "/version",
    "/docs",
    "/openapi.json",
    "/ping",
    "/scale_elastic_ep",
    "/generative_scoring",
    "/pause",
    "/v1",
    "/v1/",
    "/v1/embeddings",
    "/v1/models/x",
    "/v1/chat/completions/",
    "//v1/models",
    "/health/",
    "/v1/load_lora_adapter",
    "/server_info",
]


# The certificate of this test is self-signed.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TLS.check_hostname = False
TLS.verify_mode = ssl.CERT_NONE


@dataclass
class Engine:
    """What the fake engine saw and how it answers."""

    port: int
    status: int = 200
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)


class AgentHandler(BaseHTTPRequestHandler):
    """The agent's status port: `/ready` and nothing else."""

    protocol_version = "HTTP/1.1"
    agent: Engine

    def log_message(self, *_: object) -> None:
        return

    def answer(self) -> None:
        self.agent.seen.append((self.command, self.path, self.headers.get("Authorization")))
        status = self.agent.status if self.path == "/ready" else 404
        text = b"ready\n" if status == 200 else b"not ready\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        return

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.engine.seen.append((self.command, self.path, self.headers.get("Authorization")))
        if b'"stream": true' in body:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(3):
                event = f"data: {number}\n\n".encode()
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                self.wfile.flush()
                time.sleep(0.3)
            self.wfile.write(b"0\r\n\r\n")
            return
        text = b'{"ok": true}'
        self.send_response(self.engine.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = do_OPTIONS = answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_keys(folder: Path, clients: str, engine: str | None) -> subprocess.CompletedProcess[str]:
    """Run the key script as its unit does."""
    credentials = folder / "credentials"
    credentials.mkdir(exist_ok=True)
    (credentials / "clients").write_text(clients)
    (credentials / "engine").unlink(missing_ok=True)
    if engine is not None:
        (credentials / "engine").write_text(engine)
    return subprocess.run(
        ["bash", "-o", "errexit", "-o", "nounset", "-o", "pipefail", str(KEYS), str(folder)],
        env={"CREDENTIALS_DIRECTORY": str(credentials), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass
class Gateway:
    """A running nginx with the rendered configuration."""

    port: int
    engine: Engine
    agent: Engine
    log: Path

    def ask(
        self, path: str, method: str = "GET", key: str | None = None, body: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPSConnection("127.0.0.1", self.port, context=TLS, timeout=10)
        headers = {"Host": "spark.example.org"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        found = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    openssl = shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx and openssl are needed (Debian: nginx-light, openssl)")
    folder = tmp_path_factory.mktemp("gateway")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine = Engine(server.server_address[1])
    Handler.engine = engine
    threading.Thread(target=server.serve_forever, daemon=True).start()
    status = ThreadingHTTPServer(("127.0.0.1", 0), AgentHandler)
    AgentHandler.agent = Engine(status.server_address[1])
    threading.Thread(target=status.serve_forever, daemon=True).start()

    assert write_keys(folder, f"# keys\nalice {ALICE}\n\nbob {BOB}\n", ENGINE).returncode == 0
    request = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=spark.example.org -keyout key.pem -out chain.pem"
    )
    subprocess.run([openssl, *request.split()], check=True, capture_output=True, cwd=folder)
    port = free_port()
    text = CONF
    for old, new in {
        "/run/sparkloom-gateway": str(folder),
        "/etc/sparkloom/tls": str(folder),
        "127.0.0.1:8888": f"127.0.0.1:{engine.port}",
        "127.0.0.1:8771": f"127.0.0.1:{AgentHandler.agent.port}",
        "0.0.0.0:443": f"127.0.0.1:{port}",
        # So slow that a busy machine cannot make the limit unreachable.
        "rate=120r/m": "rate=12r/m",
    }.items():
        assert old in text
        text = text.replace(old, new)
    places = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log info;\n"
        f"events {{}}\nhttp {{ access_log {folder}/access.log;\n{places}\n{text}\n}}\n"
    )
    process = subprocess.Popen(
        [nginx, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"], stderr=subprocess.PIPE
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, process.stderr.read().decode()  # type: ignore[union-attr]
            time.sleep(0.05)
        yield Gateway(port, engine, AgentHandler.agent, folder / "access.log")
    finally:
        process.terminate()
        process.wait(10)
        server.shutdown()
        status.shutdown()


def test_routes_are_the_ones_that_the_api_needs() -> None:
    assert set(ROUTES) == {
        "/health", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
    }  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
def test_allowed_routes_want_a_key(gateway: Gateway, path: str) -> None:
    method = ROUTES[path]
    body = "{}" if method == "POST" else None
    gateway.engine.seen.clear()
    status, headers, text = gateway.ask(path, method, None, body)
    if path in OPEN:
        assert status == 200
    else:
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert json.loads(text)["error"]["type"] == "authentication_error"
        assert gateway.engine.seen == [], "a request without a key must not reach the engine"
        assert gateway.ask(path, method, "wrong-key-0123456789", body)[0] == 401
        assert gateway.ask(path, method, ALICE.upper(), body)[0] == 401
        assert gateway.engine.seen == []
    status, _, text = gateway.ask(path, method, ALICE, body)
    if path == "/health":
        assert (status, text) == (200, b"ready\n")
        assert gateway.engine.seen == [], "the engine's own /health is green beside a dead rank"
        assert gateway.agent.seen[-1] == (method, "/ready", None)
        return
    assert (status, text) == (200, b'{"ok": true}')
    # The engine sees its own key, never the client's.
    assert gateway.engine.seen[-1] == (method, path, f"Bearer {ENGINE}")


@pytest.mark.parametrize("path", ROUTES)
def test_other_methods_are_refused(gateway: Gateway, path: str) -> None:
    gateway.engine.seen.clear()
    for method in {"GET", "POST", "PUT", "DELETE", "OPTIONS"} - {ROUTES[path]}:
        assert gateway.ask(path, method, ALICE, "{}")[0] == 405, method
    assert gateway.engine.seen == []


@pytest.mark.parametrize("path", CLOSED)
def test_everything_else_does_not_exist(gateway: Gateway, path: str) -> None:
    gateway.engine.seen.clear()
    for method in ("GET", "POST"):
        for key in (None, BOB):
            status, _, text = gateway.ask(path, method, key, "{}" if method == "POST" else None)
            # A doubled slash is one slash to nginx: then the path is an allowed one, and asks for its key.
            assert status in ((404,) if path != "//v1/models" else (401, 405, 200)), (method, key)
            if status == 404:
                assert json.loads(text)["error"]["code"] == 404
    if path != "//v1/models":
        assert gateway.engine.seen == []


def test_answers_stream_token_by_token(gateway: Gateway) -> None:
    connection = HTTPSConnection("127.0.0.1", gateway.port, context=TLS, timeout=10)
    headers = {"Authorization": f"Bearer {BOB}", "Host": "spark.example.org"}
    connection.request("POST", "/v1/chat/completions", body='{"stream": true}', headers=headers)
    response = connection.getresponse()
    times = []
    for _ in range(3):
        while not (line := response.readline()).startswith(b"data:"):
            assert line
        times.append(time.monotonic())
    connection.close()
    # The engine waits 0.3 s between events; a gateway that collects would deliver them at once.
    assert times[2] - times[0] > 0.3


def test_busy_engine_says_when_to_come_back(gateway: Gateway) -> None:
    gateway.engine.status = 503
    try:
        status, headers, text = gateway.ask("/v1/models", "GET", BOB)
    finally:
        gateway.engine.status = 200
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert json.loads(text)["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("status", [503, 500])
def test_a_pair_that_is_not_ready_or_drains_takes_nothing_new(gateway: Gateway, status: int) -> None:
    """Readiness is the agent's word (`/ready`), for the health route and before every request."""
    gateway.engine.seen.clear()
    gateway.agent.status = status
    try:
        assert gateway.ask("/health")[0] in (status, 503)
        if status == 503:
            for path, method in ROUTES.items():
                body = "{}" if method == "POST" else None
                found, headers, text = gateway.ask(path, method, BOB, body)
                assert found == 503, path
                if path != "/health":
                    assert int(headers["retry-after"]) > 0
                    assert json.loads(text)["error"]["type"] == "overloaded_error"
                    assert gateway.ask(path, method, "wrong-key-0123456789", body)[0] == 401
    finally:
        gateway.agent.status = 200
    assert gateway.engine.seen == []
    assert gateway.ask("/v1/models", "GET", BOB)[0] == 200
    assert {key for _, _, key in gateway.agent.seen} == {None}, "the agent needs no key and gets none"


def test_bad_request_of_the_client_keeps_the_engine_s_answer(gateway: Gateway) -> None:
    gateway.engine.status = 400
    try:
        assert gateway.ask("/v1/models", "GET", BOB)[::2] == (400, b'{"ok": true}')
    finally:
        gateway.engine.status = 200


def test_large_bodies_are_refused(gateway: Gateway) -> None:
    connection = HTTPSConnection("127.0.0.1", gateway.port, context=TLS, timeout=10)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Authorization", f"Bearer {BOB}")
    connection.putheader("Content-Length", str(65 * 1024 * 1024))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_fast_clients_are_slowed_and_others_are_not(gateway: Gateway) -> None:
    answers = [gateway.ask("/v1/models", "GET", ALICE) for _ in range(40)]
    throttled = [answer for answer in answers if answer[0] == 429]
    assert throttled, "40 requests at once are more than the burst of 20"
    _, headers, text = throttled[0]
    assert int(headers["retry-after"]) >= 1
    assert json.loads(text)["error"]["type"] == "rate_limit_error"
    assert gateway.ask("/v1/models", "GET", BOB)[0] == 200


def test_keys_are_not_in_the_log(gateway: Gateway) -> None:
    text = gateway.log.read_text() + (gateway.log.parent / "error.log").read_text()
    assert ALICE not in text
    assert ENGINE not in text


def test_key_file_without_engine_key(tmp_path: Path) -> None:
    result = write_keys(tmp_path, ALICE + "\n", None)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "keys.map").read_text() == '"~^Bearer alice\\-key\\-0123456789$" "client1";\n'
    assert (tmp_path / "upstream.conf").read_text() == 'proxy_set_header Authorization "";\n'
    assert (tmp_path / "keys.map").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no key"),
        ("# only a comment\n", "names no key"),
        ("alice short\n", "key in line 1"),
        ('alice "; return 200; "aaaaaaaaaaa\n', "more than two words"),
        ('alice ";}server{}0123456789\n', "key in line 1"),
        ("al;ice 0123456789abcdef\n", "name in line 1"),
        ("alice 0123456789abcdef extra\n", "more than two words"),
    ],
)
def test_bad_key_files_are_refused_and_nothing_is_written(tmp_path: Path, text: str, says: str) -> None:
    result = write_keys(tmp_path, text, None)
    assert result.returncode == 4
    assert says in result.stderr
    assert "mend:" in result.stderr
    assert not (tmp_path / "keys.map").exists()
    # The message names the line, not the key.
    assert "0123456789" not in result.stderr

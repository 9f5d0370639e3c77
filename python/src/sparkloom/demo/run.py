"""`sparkloom demo run`: from nothing to a checked pair, phase by phase, and down again without a trace."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from sparkloom.demo import launch, preflight
from sparkloom.demo.cache import cache_folder
from sparkloom.demo.client import Answer, Client
from sparkloom.demo.models import DemoModel
from sparkloom.demo.view import View
from sparkloom.errors import Exit, SparkloomError
from sparkloom.ranks import Forward, Mode, Pair, Rank, listener, logs

API_PORT = 8000  # inside the head's node; outside it is the forward's port
POLL_S = 0.5
MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """How to run."""

    port: int = 8888
    nodes: Mode = "auto"
    once: bool = False
    api_key: str = ""
    key_file: Path | None = None
    start_timeout: float = 420.0
    log_folder: Path | None = None


@dataclass
class Result:
    """What a run saw, for `--format json`."""

    model: str = ""
    nodes: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    tokens_per_s: float = 0.0
    first_token_s: float = 0.0
    memory_mib: dict[str, int] = field(default_factory=dict)
    drafts: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return dict(vars(self))


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP; handled as Ctrl-C is."""


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise, as SIGINT does, so that the pair is taken down by the same way."""

    def handler(*_: object) -> None:
        raise Terminated

    old = {sig: signal.signal(sig, handler) for sig in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for sig, was in old.items():
            signal.signal(sig, was)


@contextmanager
def stopping(pair: Pair) -> Iterator[None]:
    """While the pair goes down a further signal hurries it instead of breaking it off."""

    def hurry(*_: object) -> None:
        for rank in pair.ranks:
            rank.kill()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {sig: signal.signal(sig, hurry) for sig in signals}
    try:
        yield
    finally:
        for sig, was in old.items():
            signal.signal(sig, was)


def run(model: DemoModel, settings: Settings, view: View) -> Result:
    """Prepare, start, prove, show, serve, stop.

    Errors: see `docs/demo.md`. KeyboardInterrupt when it is broken off before it serves.
    """
    result = Result(model=model.name)
    with interruptible():
        with view.phase("preflight"):
            preflight.check_packages()
            listener(settings.port).close()
            preflight.check_memory(model.memory)
        with view.phase(f"model {model.name}"):
            spec = model.prepare(view.note)
        with view.phase("nodes"):
            pair = Pair(settings.nodes)
            for line in pair.cleared:
                view.note(line)
        result.nodes = pair.mode
        try:
            drive(pair, model, spec, settings, view, result)
        finally:
            with stopping(pair), view.phase("stop"):
                left = pair.close()
    result.phases = dict(view.phases)
    if left:
        raise SparkloomError(
            "the pair did not go down whole",
            detail="\n".join(left),
            mend="end these processes by hand, and report this",
            code=Exit.INTERNAL,
        )
    return result


def drive(
    pair: Pair, model: DemoModel, spec: launch.Spec, settings: Settings, view: View, result: Result
) -> None:
    """Everything between nodes up and nodes down."""
    say = view.console.print
    say(describe(pair))
    folder = settings.log_folder or cache_folder() / "logs" / time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="sparkloom-logs-"))
    head, worker, forward = start(pair, spec, settings, folder)
    say(f"  logs: {escape(str(folder))}")
    client = Client(forward.listen, settings.api_key)
    try:
        with view.phase("ranks up"):
            wait_healthy(pair, client, settings.start_timeout, view)
        with view.phase("checked answer"):
            answer = model.check(client, spec)
            result.answers[model.question] = answer
        say(f"  [bold]{escape(model.question)}[/]\n  {escape(answer)}")
        shown = show_stream(client, model, spec, view)
        pair.check()
        result.answers[model.story] = shown.text
        result.tokens_per_s, result.first_token_s = round(shown.rate, 2), round(shown.first_s, 2)
        for name in ("drafts", "draft_tokens", "accepted_tokens") if spec.speculative else ():
            result.drafts[name] = int(client.metric(f"vllm:spec_decode_num_{name}_total"))
        say(speed_line(shown, result.drafts))
        say(memory_table([head, worker], result))
        say(f"[bold]Ready after {view.elapsed:.0f} s.[/] Try:\n", highlight=False)
        say(curl_line(forward.listen, spec.served, settings), highlight=False, soft_wrap=True, markup=False)
        if not settings.once:
            serve(pair, view)
    finally:
        client.close()


def describe(pair: Pair) -> str:
    """One line on what the two nodes are."""
    if pair.mode == "netns":
        shown = " and ".join(f"{node.namespace} ({node.address})" for node in pair.nodes)
        return f"  two network namespaces joined by a veth cable: {shown}"
    return f"  two loopback processes as the two nodes ({escape(pair.reason)})"


def start(pair: Pair, spec: launch.Spec, settings: Settings, folder: Path) -> tuple[Rank, Rank, Forward]:
    """Start both ranks and hold the API's port from now on."""
    if pair.mode == "netns":
        api_port = API_PORT
        master_port = pair.network.free_port(pair.nodes[0])
    else:
        api_port, master_port = pair.network.free_port(pair.nodes[0]), pair.network.free_port(pair.nodes[0])
    forward = pair.forward(0, api_port, settings.port)
    cores = launch.available_cores()
    commands = launch.ranks(spec, pair.nodes, master_port, api_port, cores, settings.api_key)
    started = [
        pair.start(name, number, argv, log=folder / f"{name}.log", env=env)
        for number, (name, (argv, env)) in enumerate(zip(("head", "worker"), commands, strict=True))
    ]
    return started[0], started[1], forward


def wait_healthy(pair: Pair, client: Client, timeout: float, view: View) -> None:
    """Until the head answers; a rank that ends meanwhile ends the wait.

    Errors: RANK with the last lines of both logs after `timeout`.
    """
    end = time.monotonic() + timeout
    while not client.healthy():
        pair.check()
        view.note(progress_of(pair.ranks[0].log))
        if time.monotonic() > end:
            raise SparkloomError(
                f"the pair did not come up within {timeout:.0f} s",
                detail="\n".join(f"--- {r.name}: {r.log}\n{r.tail(12)}" for r in pair.ranks),
                mend="look at both logs; on a slow machine give --start-timeout more",
                code=Exit.RANK,
            )
        time.sleep(POLL_S)


STEPS = (
    ("Application startup complete", "API up"),
    ("Starting to load model", "loading weights"),
    ("rank 0 in world size", "both ranks joined"),
    ("Initializing a V1 LLM engine", "engine starting"),
    ("non-default args", "importing"),
)


def progress_of(log: Path) -> str:
    """The furthest step that a head's log tells of."""
    text = logs.tail(log, 400)
    return next((step for words, step in STEPS if words in text), "starting")


def show_stream(client: Client, model: DemoModel, spec: launch.Spec, view: View) -> Answer:
    """Stream one longer answer onto the console."""
    view.console.print(f"  [bold]{escape(model.story)}[/]\n  ", end="")

    def piece(text: str) -> None:
        view.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    answer = client.stream(spec.served, model.story, model.story_tokens, piece)
    view.console.print()
    return answer


def speed_line(answer: Answer, drafts: dict[str, int]) -> str:
    """How fast the streamed answer came, and how many drafts helped."""
    line = f"  {answer.tokens} tokens, first after {answer.first_s:.1f} s, "
    line += f"then [bold]{answer.rate:.1f} tokens/s[/]"
    if drafts:
        line += f"; {drafts['accepted_tokens']} of {drafts['draft_tokens']} drafts accepted"
    return line


def memory_table(both: list[Rank], result: Result) -> Table:
    """Both ranks' memory as a table; the numbers go into the result too."""
    table = Table("rank", "node", "processes", "memory (PSS)", box=None, padding=(0, 2))
    for rank in both:
        used = rank.memory()
        result.memory_mib[rank.name] = used // MIB
        where = rank.node.namespace or rank.node.address
        table.add_row(rank.name, where, str(len(rank.processes())), f"{used / MIB:,.0f} MiB")
    return table


def curl_line(port: int, served: str, settings: Settings) -> str:
    """A command that a person can paste."""
    key = ""
    if settings.api_key:
        source = f"$(cat {settings.key_file})" if settings.key_file else "$VLLM_API_KEY"
        key = f' -H "Authorization: Bearer {source}"'
    question = {"role": "user", "content": "Hello!"}
    body = json.dumps({"model": served, "messages": [question], "max_tokens": 32})
    return (
        f"  curl http://127.0.0.1:{port}/v1/chat/completions{key}"
        f" -H 'Content-Type: application/json' -d '{body}'\n"
    )


def serve(pair: Pair, view: View) -> None:
    """Until Ctrl-C or SIGTERM; a rank that ends raises."""
    try:
        view.console.print("Serving until Ctrl-C.")
        while True:
            pair.check()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        view.console.print()

"""Every command of README and docs is run or parsed; what cannot run here is listed with its reason."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

from doc_commands import Command, commands, pages

from sparkloom.cli.main import run
from sparkloom.cli.table import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FOUND = [c for page in pages(ROOT) for c in commands(str(page.relative_to(ROOT)), page.read_text())]
OURS = [c for c in FOUND if c.program == "sparkloom"]

# Programs that are not ours, with the reason why they are not run here. Their targets in this repository are
# checked below where they have any.
OTHERS = {
    "make": "starts the demo or the whole test run; targets are checked against the Makefile",
    "nix": "needs nixpkgs; flake outputs are checked in tests/nix",
    "nixos-rebuild": "changes the machine",
    "curl": "needs a server; the same request is docs/examples/clients/chat.sh, which runs",
    "pytest": "would run the tests inside of the tests; the folder is checked",
    "sh": "installs Nix",
    "install": "makes files of the system",
    "chmod": "changes a file of the system",
    "head": "makes a key of the system",
    "base64": "makes a key of the system",
    "openssl": "makes a key of the system",
    "mkdir": "a folder for the flake template",
    "cd": "a folder for the flake template",
    "grep": "reads the output of nix",
    "export": "sets variables of the reader's shell",
    "python": "of .venv-clients: the file that it runs is run in tests/clients",
    "chat.sh": "run in tests/clients",
}

# Commands of ours that are parsed by the real command line only.
PARSED = {
    "bench": "needs a server; run in tests/bench and tests/demo",
    "quality collect": "needs a server; run in tests/quality",
    "quality gate": "needs a server",
    "quality seal": "needs a checkpoint's tokenizer; run in tests/quality",
    "probe": "needs a server; run in tests/probe",
    "ablit": "needs donor and checkpoint; run in tests/ablit",
    "demo": "starts a pair or encodes for minutes; run in tests/demo",
    "chaos": "starts pairs; run in tests/chaos",
    "weights": "needs hub, peer or 164 GiB; run in tests/weights",
    "fabric": "reads the machine's RDMA devices; run in tests/fabric",
    "preflight": "judges this machine; run in tests/preflight",
    "capture": "reads this machine; run in tests/preflight",
    "exl3": "needs a checkpoint or minutes; run in tests/exl3",
    "plugin": "imports vLLM; run in tests/vllm",
    "doctor": "judges this machine; run in tests/preflight",
    "prefix-diff": "needs transformers, seconds to import; run in tests/prefix",
    "agent": "runs for ever; run in tests/chaos",
    "status": "needs an agent; run in tests/chaos",
    "start": "needs an agent; run in tests/chaos",
    "stop": "needs an agent; run in tests/chaos",
    "restart": "needs an agent; run in tests/chaos",
    "drain": "needs an agent; run in tests/chaos",
    "logs": "needs an agent; run in tests/chaos",
    "bundle": "needs an agent; run in tests/chaos",
}
# Of these, `--list` and the like need nothing and are run.
HARMLESS = ("--list", "--help")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages speak of."""
    from sparkloom.quality.windows import cut

    for name in ("cluster.json", "etc/sparkloom/cluster.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs/examples/cluster.json", tmp_path / name)
    for name in ("head.txt", "worker.txt"):
        shutil.copy(ROOT / "tests/fixtures/meminfo/idle-headless.txt", tmp_path / name)
    windows = cut(list(range(64)), 2, 32, "text.txt")
    windows.save(tmp_path / "windows.json")
    near, far = {"1": -0.1, "2": -2.5}, {"1": -0.2, "2": -1.9}
    for name in ("teacher", "plain", "model", "edited", "k2", "k3", "k4", "k6"):
        cell = near if name in ("teacher", "plain") else far
        rows = [{"seal": windows.seal, "top": 20, "window": i, "positions": [cell] * 31} for i in range(2)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / ".env").write_text("GLM53_PORT=8888\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def key_of(command: Command, table: dict[str, str]) -> str | None:
    """The longest entry of a table that a command begins with."""
    words = command.words[1:]
    return next((k for k in (" ".join(words[:2]), words[0]) if k in table), None) if words else None


def click_command(name: str) -> Any:
    """The command as click sees it; typer brings its own copy of click, so nothing is asked by its type."""
    app: typer.Typer = importlib.import_module(COMMANDS[name][0]).app
    return typer.main.get_command(app)


def parse(words: list[str], *, loose: bool = False) -> None:
    """Parse a command line of ours without running it.

    Args:
        loose: of running text: options must exist, arguments may be missing.

    Raises:
        AssertionError: an unknown option or command.
        Exception: click's own, for a missing argument or a bad value.
    """
    assert words[0] in COMMANDS, f"no command {words[0]}"
    command, rest = click_command(words[0]), words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"):
            assert not rest or rest[0] in HARMLESS or command.invoke_without_command, f"{words}: no command"
            break
        assert rest[0] in command.commands, f"{words}: no sub-command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in rest:
        if word.startswith("-") and word != "-" and not re.fullmatch(r"-\d.*", word):
            assert word.split("=")[0] in known, f"{words}: no option {word}"
    if not loose:
        command.make_context(words[0], list(rest), resilient_parsing=False)


@pytest.mark.parametrize("command", OURS, ids=str)
def test_command_of_ours(command: Command, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [re.sub(r"\$\(.*\)", "/usr/bin/sparkloom", w) for w in command.words[1:]]
    words = [re.sub(r"^/etc/sparkloom", str(desk / "etc/sparkloom"), w) for w in words]
    words = ["spark-head" if w == "spark-a" else w for w in words]
    if "units" in words and "--out" in words:
        words[words.index("--out") + 1] = str(desk / "units")
    parse(words)
    if key_of(command, PARSED) is None or set(words) & set(HARMLESS):
        code = run(words)
        assert code == 0, capfd.readouterr()


INLINE = [
    (str(page.relative_to(ROOT)), m[1])
    for page in pages(ROOT)
    for m in re.finditer(r"`sparkloom ([^`]+)`", re.sub(r"\s*\n\s*", " ", page.read_text()))
]


@pytest.mark.parametrize(("page", "line"), sorted(set(INLINE)))
def test_command_in_running_text(page: str, line: str) -> None:
    """Command and options exist; placeholders and leaving things out are allowed."""
    line = re.sub(r"[\[\]…|]|\.\.\.", " ", line)
    words = [w for w in line.split() if not re.fullmatch(r"[A-Z_.]+", w)]
    if (words and words[0].isupper()) or not words or words[0] in HARMLESS or words[0] == "head":
        return
    if words[0] == "COMMAND" or words[0].startswith("-"):
        return
    parse(words, loose=True)


def test_every_other_program_is_known() -> None:
    unknown = [str(c) for c in FOUND if c.program not in {"sparkloom", *OTHERS}]
    assert not unknown, "add them to OTHERS with the reason why they are not run:\n" + "\n".join(unknown)


def test_lists_hold_nothing_that_is_gone() -> None:
    used = {key_of(c, PARSED) for c in OURS} | {w.split()[0] for _, w in INLINE}
    assert set(PARSED) - used - {"quality gate", "quality seal", "quality collect"} == set()
    assert set(OTHERS) <= {c.program for c in FOUND}


@pytest.mark.parametrize("command", [c for c in FOUND if c.program == "make"], ids=str)
def test_make_target_exists(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in command.words[1:]:
        name, _, value = word.partition("=")
        if value:
            assert re.search(rf"^{name} \?=", makefile, re.M), word
        else:
            assert re.search(rf"^{word}:", makefile, re.M), word


@pytest.mark.parametrize("command", [c for c in FOUND if c.program in ("nix", "nixos-rebuild")], ids=str)
def test_flake_output_exists(command: Command) -> None:
    """Names after `#` stand in the flake's sources."""
    text = "\n".join(p.read_text() for p in (ROOT / "flake.nix", *ROOT.glob("pkgs/**/*.nix")))
    text += "\n".join(p.read_text() for p in ROOT.glob("hosts/**/*.nix"))
    for word in command.words:
        if "#" in word:
            for part in word.split("#")[1].split("."):
                if part not in ("config", "system", "build", "toplevel", "checks", "packages"):
                    assert part in text or part.endswith("-linux"), word


def test_files_that_commands_name_exist() -> None:
    for command in FOUND:
        for word in command.words:
            if re.match(r"^(docs|tests|python|kernels)/\S+$", word):
                assert (ROOT / word).exists(), command


BY_A_RUN = {"docs/receipts"}
"""Folders that appear with the first receipt of a GPU run."""


def links() -> list[tuple[str, str]]:
    out = []
    for page in pages(ROOT):
        for m in re.finditer(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
            out.append((str(page.relative_to(ROOT)), m[1]))
    return out


def test_links_lead_somewhere() -> None:
    found = {(page, to, (ROOT / page).parent.joinpath(to).resolve()) for page, to in links()}
    made = {ROOT / folder for folder in BY_A_RUN}
    assert not [f"{page}: {to}" for page, to, path in found if not path.exists() and path not in made]


def test_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "README.md" and p.name not in index]
    assert not missing


def test_pictures(repo: Path) -> None:
    """The drawing is whole XML that both colour schemes are made for; the page's picture is small."""
    import xml.etree.ElementTree as ET

    svg = repo / "docs/pictures/architecture.svg"
    root = ET.parse(svg).getroot()
    assert root.tag.endswith("svg")
    assert "prefers-color-scheme: dark" in svg.read_text()
    png = repo / "docs/pictures/status.png"
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert png.stat().st_size < 100_000


def test_status_picture_shows_the_real_page(tmp_path: Path) -> None:
    """The made-up document has the fields that the agent's view has; the browser draws it."""
    import inspect

    from sparkloom.agent import view
    from sparkloom.testing.status_picture import document

    source = inspect.getsource(view)
    made: dict[str, Any] = document(0.0)
    for key in (*made, *made["nodes"][0], *made["engine"]):
        assert f'"{key}"' in source, key
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium is installed: the picture was not drawn")
    out = tmp_path / "page.png"
    subprocess.run(
        [sys.executable, "-m", "sparkloom.testing.status_picture", str(out)], check=True, timeout=120
    )
    assert out.stat().st_size > 10_000

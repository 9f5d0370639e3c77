"""Evidence of a node: what is in it, which class it names, and that no key leaves the node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkloom import fsio
from sparkloom.agent.settings import Settings, settings_of
from sparkloom.cluster import parse
from sparkloom.evidence.collect import collect
from sparkloom.logs import Shelf
from sparkloom.preflight import boot
from sparkloom.redact import Redactor
from sparkloom.sysroot import SysRoot

AGENT_KEY = "qT9vYw3mK8sLx2Rb7NcD4fGh6JpZ1aUe"
API_KEY = "winter-garden-42"  # of no known shape: only its owner can tell that it is a key
HUB = "hf_AbCdEfGhIjKlMnOp"
NODES = [
    {"name": "spark-a", "role": "head", "fabric": {"addresses": ["192.168.100.1"]}},
    {"name": "spark-b", "role": "worker", "fabric": {"addresses": ["192.168.100.2"]}},
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(settings_of(parse({"nodes": NODES}), "spark-a"), state=tmp_path / "state")


def gathered(settings: Settings, tree: Path, log: str, **files: str) -> dict[str, Any]:
    shelf = Shelf(settings.state / "logs")
    folder = shelf.new(3)
    fsio.write_text(folder / "rank.log", log)
    for name, text in {"proc/meminfo": "MemTotal: 1 kB\n", **files}.items():
        fsio.write_text(tree / name, text)
    return collect(settings, SysRoot(tree), shelf, (AGENT_KEY, API_KEY))


@pytest.mark.parametrize(
    "line",
    [
        f"VLLM_API_KEY={API_KEY}",
        f"Authorization: Bearer {API_KEY}",
        f"non-default args: {{'api_key': ['{API_KEY}']}}",
        f"curl https://x/?k={API_KEY}&b",
        f"HF_TOKEN={HUB}",
        f"cloning with {HUB} ok",
        f"the key is {AGENT_KEY}!",
        f'{{"password": "{API_KEY}"}}',
    ],
)
def test_no_key_leaves_the_node(settings: Settings, tmp_path: Path, line: str) -> None:
    found = gathered(settings, tmp_path / "root", f"INFO before\n{line}\nINFO after\n")
    text = json.dumps(found)
    for secret in (AGENT_KEY, API_KEY, HUB):
        assert secret not in text
    assert "INFO before" in text
    assert "INFO after" in text


def test_a_reset_of_the_host_stays_in_the_evidence(settings: Settings, tmp_path: Path) -> None:
    """P21: the record outlives the next start."""
    for boot_id in ("one", "two"):
        fsio.write_text(tmp_path / boot_id / boot.BOOT_ID, boot_id)
        boot.record_start(settings.state, SysRoot(tmp_path / boot_id))
    found = gathered(settings, tmp_path / "root", "INFO\n")
    assert json.loads(found["files"][boot.LAST])["boot_id"] == "one"
    assert json.loads(found["files"][boot.RECORD])["boot_id"] == "two"


@pytest.mark.parametrize(
    ("log", "files", "kind"),
    [
        ("RuntimeError: EngineCore encountered an issue\n", {}, "engine"),
        ("pydantic ValidationError: 1 error\n", {}, "config"),
        ("NCCL error: ncclSystemError\n", {}, "nccl"),
        ("NCCL WARN NET/IB : ibv_modify_qp failed\n", {}, "fabric"),
        ("", {"var/log/kern.log": "NVRM: out of memory\n"}, "memory-wedge"),
        ("", {"var/log/kern.log": "Out of memory: Killed process 1 (vllm)\n"}, "kernel-oom"),
        ("", {"var/log/journal.txt": "systemd-oomd[5]: Killed /x.service due to\n"}, "foreign-oom-killer"),
        ("INFO all is well\n", {}, "unknown"),
    ],
)
def test_the_class_of_failure_is_named_with_its_mend(
    settings: Settings, tmp_path: Path, log: str, files: dict[str, str], kind: str
) -> None:
    """P21, P36: one class per cause, from the node's own texts."""
    first = gathered(settings, tmp_path / "root", log, **files)["classes"][0]
    assert first["kind"] == kind
    assert first["mend"]


def test_a_node_without_anything_to_tell_is_no_error(settings: Settings, tmp_path: Path) -> None:
    found = collect(settings, SysRoot(tmp_path / "nothing"), Shelf(tmp_path / "none"))
    assert found["classes"][0]["kind"] == "unknown"


def test_short_secrets_take_no_words_apart() -> None:
    assert Redactor(secrets=("a", "")).text("a banana") == "a banana"
    assert Redactor(secrets=("secret-1", "secret-12")).text("secret-12") == "REDACTED"

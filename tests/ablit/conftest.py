"""A world for every test of weight edits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ablit_world import FakeHub, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("sparkloom.weights.hub.DEFAULT_ENDPOINT", "http://127.0.0.1:9")
    with FakeHub() as hub:
        yield World(tmp_path, hub)

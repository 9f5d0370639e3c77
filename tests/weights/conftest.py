"""A tiny checkpoint on a fake hub."""

from __future__ import annotations

import pytest
from fixtures import tiny_checkpoint
from fixtures.fake_hub import REPO, REVISION, FakeHub

from sparkloom.weights.download import Options
from sparkloom.weights.hub import Source, resolve


@pytest.fixture
def content():
    return tiny_checkpoint.files()


@pytest.fixture
def hub(content, monkeypatch):
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with FakeHub() as hub:
        hub.add(content)
        monkeypatch.setattr("sparkloom.weights.hub.DEFAULT_ENDPOINT", hub.url)  # no test leaves this machine
        yield hub


@pytest.fixture
def source(hub):
    return Source(hub.url, REPO, REVISION)


@pytest.fixture
def manifest(source):
    return resolve(source, None)


@pytest.fixture
def options():
    return Options(stall_s=0.3, attempts=3, backoff_s=0.001)

"""Shared by all tests: where things are, and skips that say why."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A shell starts a background job with SIGINT ignored, and children inherit that: the tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root folder."""
    return ROOT

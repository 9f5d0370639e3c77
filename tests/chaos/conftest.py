"""Worlds of two nodes for the tests; skips that say why."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkloom.testing.chaos import World, WorldOptions


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes worlds and takes them down again, whatever happens."""
    made: list[World] = []

    def make(**options: object) -> World:
        made.append(World(WorldOptions(tmp_path, **options)).__enter__())  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.__exit__()
        assert not one.rank_processes(), "the world left ranks behind"
        assert all(agent.poll() is not None for agent in one.agents.values())


@pytest.fixture
def chromium() -> str:
    """The browser's program."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed: the status page was not looked at in a browser")
    return program

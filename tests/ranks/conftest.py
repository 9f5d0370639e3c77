"""A pair of fake ranks, in namespaces where this machine allows them and on loopback always."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks_fakes import private

from sparkloom.ranks import Pair, why_no_namespaces
from sparkloom.ranks.nodes import Mode


@pytest.fixture(params=["netns", "loopback"])
def mode(request: pytest.FixtureRequest) -> Mode:
    if request.param == "netns" and (reason := why_no_namespaces()):
        pytest.skip(f"no namespaces here: {reason}")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def pair(mode: Mode, tmp_path: Path) -> Iterator[Pair]:
    with Pair(mode, base=private(tmp_path)) as made:
        yield made

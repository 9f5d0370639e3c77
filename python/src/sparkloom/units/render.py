"""Unit text from `facts.json`. Pure: what a unit needs to know comes in, text comes out."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from sparkloom.errors import SparkloomError

_SAFE = re.compile(r"[A-Za-z0-9_./:@=,+-]+")


@dataclass(frozen=True)
class UnitNeeds:
    """Everything of one node that a unit text depends on. Paths are absolute."""

    exec: str
    cluster: str
    node: str
    agent_key_file: str
    api_key_file: str | None = None
    user: str = "sparkloom"
    group: str = "sparkloom"
    runtime_directory: str = "/run/sparkloom"
    state_directory: str = "/var/lib/sparkloom"
    cache_directory: str = "/var/cache/sparkloom"
    clock_min: int = 300
    clock_max: int | None = 2200  # None: no clock cap

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, str) and not _SAFE.fullmatch(value):
                raise SparkloomError(
                    "this value cannot stand in a unit file",
                    field=name,
                    value=value,
                    mend="use letters, digits and _ . / : @ = , + - only (no spaces)",
                )
        for name in ("exec", "cluster", "agent_key_file", "api_key_file"):
            value = getattr(self, name)
            if value is not None and not str(value).startswith("/"):
                raise SparkloomError("systemd needs an absolute path", field=name, value=value)


def facts() -> dict[str, Any]:
    """The facts as data."""
    text = resources.files("sparkloom.units").joinpath("facts.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def render(needs: UnitNeeds) -> dict[str, str]:
    """Every unit's file name and text for one node."""
    known = facts()
    texts: dict[str, str] = {}
    for name, unit in known["units"].items():
        if name == "sparkloom-clocks.service" and needs.clock_max is None:
            continue
        sections = {key: dict(unit[key]) for key in ("Unit", "Service", "Path", "Install") if key in unit}
        if needs.api_key_file is not None and "with_api_key" in unit:
            for section, more in unit["with_api_key"].items():
                for key, lines in more.items():
                    sections[section][key] = [*_lines(sections[section].get(key, [])), *lines]
        blocks = [
            "\n".join([f"[{title}]", *(f"{k}={_fill(v, needs)}" for k, v in _flat(body))])
            for title, body in sections.items()
        ]
        texts[name] = "\n\n".join(blocks) + "\n"
    return texts


def sysusers(needs: UnitNeeds) -> str:
    """The sysusers.d file that makes the service's user."""
    groups = facts()["user"]["supplementary_groups"]
    lines = [f'u {needs.user} - "Sparkloom" {needs.state_directory}']
    lines += [f"m {needs.user} {group}" for group in groups]
    return "\n".join(lines) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _flat(section: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, line) for key, value in section.items() for line in _lines(value)]


def _fill(text: str, needs: UnitNeeds) -> str:
    values = {key: str(value) for key, value in asdict(needs).items()}

    def put(match: re.Match[str]) -> str:
        # A percent sign is a specifier to systemd.
        return values[match.group(1)].replace("%", "%%")

    return re.sub(r"@([a-z_]+)@", put, text)

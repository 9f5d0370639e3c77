"""The field reference of docs/cluster.md, made from the schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkloom.cluster.descriptions import of_section
from sparkloom.cluster.profiles import MODEL_DEFAULTS, PROFILES
from sparkloom.cluster.schema import section_of
from sparkloom.cluster.types import Cluster


def markdown() -> str:
    """One table per section: field, default, what it means."""
    parts = [_table("", Cluster, plain=True)]
    for name, field in Cluster.model_fields.items():
        if (inner := section_of(field)) is not None:
            parts.append(_section(f"{name}[]" if name == "nodes" else name, inner))
    return "\n".join(parts)


def profiles_markdown() -> str:
    """Every profile with its trade and values."""
    lines = ["| profile | what it trades | values |", "|---|---|---|"]
    for name, profile in PROFILES.items():
        values = ", ".join(f"`{path}` {_value(value)}" for path, value in profile.values.items())
        lines.append(f"| `{name.value}` | {profile.trade} | {values} |")
    rest = ", ".join(f"`{path}` {_value(value)}" for path, value in MODEL_DEFAULTS.items())
    lines.append(f"| (model default) | What applies when file and profile say nothing. | {rest} |")
    return "\n".join(lines) + "\n"


def _section(path: str, section: type[BaseModel]) -> str:
    text = f"### `{path}`\n\n{_first_line(section)}\n\n{_table(path, section)}"
    for name, field in section.model_fields.items():
        if (inner := section_of(field)) is not None:
            text += f"\n{_section(f'{path}.{name}', inner)}"
    return text


def _table(path: str, section: type[BaseModel], *, plain: bool = False) -> str:
    texts = of_section(section)
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        if plain and section_of(field) is not None:
            continue
        lines.append(f"| `{name}` | {_default(field)} | {texts.get(name, '').replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    return "" if isinstance(value, BaseModel) else f"`{json.dumps(value, default=str)}`"


def _value(value: Any) -> str:
    blocks = getattr(value, "count", None)
    if isinstance(blocks, int):
        return f"{blocks} blocks"
    return json.dumps(value, default=str).strip('"')

"""The JSON Schema of the cluster file, and a walk over its fields."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkloom.cluster.descriptions import of_section
from sparkloom.cluster.types import Cluster

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the cluster file; descriptions are single lines."""
    schema = {"$schema": SCHEMA_ID, **Cluster.model_json_schema()}
    schema["title"] = "Sparkloom cluster file"
    sections: list[type[BaseModel]] = [Cluster, *_sections(Cluster)]
    for section in sections:
        target = schema if section is Cluster else schema["$defs"][section.__name__]
        for name, text in of_section(section).items():
            target["properties"][name]["description"] = text
    schema["properties"] = {
        "$schema": {"type": "string", "description": "Address of this schema, for editors. Not read."},
        **schema["properties"],
    }
    result = _tidy(schema)
    assert isinstance(result, dict)
    return result


def checked_in() -> str:
    """Text of the schema file that ships with the package."""
    return resources.files("sparkloom.cluster").joinpath("cluster.schema.json").read_text()


def _tidy(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _tidy(value)
            for key, value in node.items()
            if not (key == "title" and isinstance(value, str) and node.get("type") != "object")
        }
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    return node


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section class behind a field (through Optional, list and Annotated), or None for a plain value."""
    return _section(field.annotation)


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Annotated, list, Union, types.UnionType):
        for argument in get_args(annotation):
            if found := _section(argument):
                return found
    return None


def _sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in _fields(section).values():
        if inner := section_of(field):
            yield inner
            yield from _sections(inner)


@cache
def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    return section.model_fields


def fields_at(location: Sequence[str | int]) -> list[str]:
    """Names of the fields that the object at `location` may have; empty when it is no object."""
    section: type[BaseModel] | None = Cluster
    for part in location:
        if isinstance(part, int) or section is None:
            continue
        field = _fields(section).get(part)
        section = section_of(field) if field else None
    return list(_fields(section)) if section else []


def describe(path: str) -> str:
    """Description of the field at `path`, for example `serving.context_tokens` or `nodes[].name`."""
    section: type[BaseModel] = Cluster
    *parents, name = path.replace("[]", "").split(".")
    for part in parents:
        inner = section_of(_fields(section)[part])
        assert inner is not None, path
        section = inner
    return of_section(section).get(name, "")


def walk(section: type[BaseModel] = Cluster, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every plain field as (path, field); list elements are written `nodes[].name`."""
    for name, field in _fields(section).items():
        inner = section_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            many = "[]" if "list[" in str(field.annotation) else ""
            yield from walk(inner, f"{prefix}{name}{many}.")

"""What every section of the cluster file shares: strictness and the small value types."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

GIB = 1 << 30
MIB = 1 << 20


class Section(BaseModel):
    """One object of the cluster file. Unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def _ipv4(value: Any) -> str:
    """Return `value` as dotted IPv4 text; ValueError otherwise."""
    if not isinstance(value, str):
        raise ValueError('an IPv4 address in quotes is needed, for example "192.168.100.1"')
    try:
        return str(IPv4Address(value))
    except ValueError:
        raise ValueError(f"{value!r} is not an IPv4 address such as 192.168.100.1") from None


Ipv4 = Annotated[str, BeforeValidator(_ipv4), Field(json_schema_extra={"format": "ipv4"})]
Port = Annotated[int, Field(ge=1, le=65535)]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", min_length=1, max_length=63)
]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/", min_length=2, max_length=4096)]
"""A path on the node itself, from the root."""
NetDevice = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,15}$")]
RdmaDevice = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,63}$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

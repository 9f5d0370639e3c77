"""Turn settings into a cluster file and an account of every knob. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from sparkloom.migrate.envfile import Setting
from sparkloom.migrate.knobs import FIELDS, SECRETS, kv_bytes, note


@dataclass(frozen=True)
class Row:
    """What became of one knob.

    Attributes:
        knob, line: the assignment.
        outcome: mapped | not needed | by hand | refused | unknown.
        field: the cluster file's field, where there is one.
        remark: a word to the reader.
    """

    knob: str
    line: int
    outcome: str
    field: str | None
    remark: str

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def skeleton() -> dict[str, Any]:
    """A cluster file of two nodes whose addresses must be given."""
    return {
        "schema_version": 1,
        "name": "sparks",
        "nodes": [
            {"name": "spark-head", "role": "head", "fabric": {"addresses": ["10.0.0.1"]}},
            {"name": "spark-worker", "role": "worker", "fabric": {"addresses": ["10.0.0.2"]}},
        ],
    }


def put(target: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b` or `nodes[head].a.b` in a nested dict."""
    match = re.match(r"nodes\[(\w+)\]\.(.+)", path)
    if match:
        target = next(n for n in target["nodes"] if n["role"] == match[1])
        path = match[2]
    *parents, name = path.split(".")
    for part in parents:
        target = target.setdefault(part, {})
    target[name] = value


def convert(settings: dict[str, Setting], accept_licence: bool) -> tuple[dict[str, Any], list[Row]]:
    """Cluster file and account of a recipe's settings.

    Args:
        settings: parsed environment file.
        accept_licence: the user has accepted the DFlash2 weights' non-commercial licence; without it
            `dflash` becomes `mtp`, and the account says so.
    """
    cluster = skeleton()
    rows: list[Row] = []

    def say(s: Setting, outcome: str, remark: str = "", field: str | None = None) -> None:
        rows.append(Row(s.name, s.line, outcome, field, remark))

    for name, s in settings.items():
        if name in SECRETS:
            say(s, "by hand", SECRETS[name], "api.key_file" if "API" in name else None)
        elif s.expands:
            say(s, "by hand", "a shell would expand its value; nothing is executed here")
        elif name in FIELDS:
            field, change = FIELDS[name]
            if not s.value:
                say(s, "not needed", "empty: the default holds", field)
                continue
            try:
                value = change(s.value)
            except (ValueError, KeyError) as error:
                reason = "not a known word" if isinstance(error, KeyError) else str(error)
                say(s, "refused", f"{s.value!r}: {reason}", field)
                continue
            if value is None:
                say(s, "not needed", "our default", field)
                continue
            put(cluster, field, value)
            say(s, "mapped", "", field)
        elif name == "EXTRA_ARGS" and (size := kv_bytes(s.value)) is not None:
            put(cluster, "serving.kv_cache_bytes", size)
            rest = re.sub(r"--kv-cache-memory-bytes[= ]\d+", "", s.value).strip()
            say(
                s,
                "mapped" if not rest else "by hand",
                f"left over: {rest}" if rest else "",
                "serving.kv_cache_bytes",
            )
        elif (remark := note(name)) is not None:
            say(s, "not needed", remark)
        else:
            say(s, "unknown", "no recipe that we know has it")
    settle_drafter(cluster, settings, rows, accept_licence)
    settle_vision(cluster, rows)
    return cluster, rows


def settle_vision(cluster: dict[str, Any], rows: list[Row]) -> None:
    """Without the tower its limits say nothing (and the cluster file refuses them)."""
    if cluster.get("vision", {}).get("enabled") is False:
        cluster["vision"] = {"enabled": False}
        rows[:] = [
            Row(r.knob, r.line, "not needed", r.field, "the vision tower is off")
            if (r.field or "").startswith("vision.") and r.field != "vision.enabled"
            else r
            for r in rows
        ]


def settle_drafter(
    cluster: dict[str, Any], settings: dict[str, Setting], rows: list[Row], accept: bool
) -> None:
    """Drafter tokens of the chosen kind, and the licence."""
    drafter = cluster.get("drafter", {})
    kind = drafter.get("kind")
    if kind == "dflash2":
        if accept:
            drafter["accept_non_commercial_licence"] = True
        else:
            drafter["kind"] = kind = "mtp"
            line = settings["SPEC_METHOD"].line
            text = "mtp instead: DFlash2's weights are CC BY-NC-ND 4.0; accept with --accept-licence"
            rows[:] = [
                Row(r.knob, line, "by hand", r.field, text) if r.knob == "SPEC_METHOD" else r for r in rows
            ]
    knob = {"dflash2": "DFLASH_TOKENS", "mtp": "MTP_TOKENS"}.get(str(kind))
    if knob in settings and settings[knob].value.isdecimal():
        s = settings[knob]
        put(cluster, "drafter.tokens", int(s.value))
        rows[:] = [Row(r.knob, r.line, "mapped", "drafter.tokens", "") if r.knob == knob else r for r in rows]

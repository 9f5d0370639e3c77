"""The matrix's receipt: JSON with every number, Markdown to read."""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GROUPS = ("base", "hooks", "exl3", "long", "dflash")
PACKAGES = ("vllm", "torch", "triton", "transformers", "flashinfer-python", "numpy")


def circumstances(repo: Path, commit: str | None = None) -> dict[str, Any]:
    """Device, driver, versions, commit, time. Read where the matrix ran."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or said("git", "-C", str(repo), "rev-parse", "--short", "HEAD"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "versions": {},
    }
    for name in PACKAGES:
        try:
            found["versions"][name] = version(name)
        except PackageNotFoundError:
            continue
    line = said(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"
    )
    parts = [part.strip() for part in line.splitlines()[0].split(",")] if line else []
    for name, value in zip(("device", "driver", "memory", "capability"), parts, strict=False):
        found[name] = value
    match = re.search(r"release ([\d.]+)", said("nvcc", "--version"))
    found["nvcc"] = match.group(1) if match else ""
    return found


def said(*argv: str) -> str:
    """Output of a program; empty if it is not there or fails."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def shortened(verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Verdicts without the long lists: of each generation only the tokens stay."""
    found = {}
    for name, one in verdicts.items():
        record = dict(one["record"])
        if "error" in record:
            record["error"] = str(record["error"]).splitlines()[0]
        if "generations" in record:
            record["tokens"] = [g["tokens"] for g in record.pop("generations")]
        found[name] = {**one, "record": record}
    return found


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Results of several runs of one session: a row's latest run counts, unless it did not run."""
    merged: dict[str, Any] = {"runs": [part["where"] for part in parts], "rows": {}}
    for part in parts:
        for name, one in part["rows"].items():
            if one["state"] == "ran" or name not in merged["rows"]:
                merged["rows"][name] = one
    return merged


def slug(device: str) -> str:
    """A device's name for a file name."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "no-gpu"


def number(value: Any) -> str:
    """A value for a table cell."""
    if isinstance(value, float):
        return f"{value:g}"
    text = json.dumps(value) if isinstance(value, list | dict) else str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def seen_in_words(seen: Any) -> str:
    """What a check saw, short."""
    if isinstance(seen, Mapping) and "tokens_equal" in seen:
        text = f"{seen['tokens_equal']} of {seen['tokens']} tokens"
        text += f", {seen['prompts_equal']} of {seen['prompts']} prompts"
        if seen["identical"]:
            return text + ", every log-probability equal"
        if seen["gaps"]:
            text += ", first differences at gaps of " + ", ".join(
                "unknown" if gap is None else f"{gap:g}" for gap in seen["gaps"]
            )
        if seen["median"] is not None:
            text += f"; |Δlogprob| median {seen['median']:g}, p95 {seen['p95']:g}"
        return text
    if isinstance(seen, Mapping):
        return ", ".join(f"{name} {number(value)}" for name, value in seen.items())
    return number(seen)


def markdown(merged: Mapping[str, Any]) -> str:
    """The receipt as a page."""
    where = merged["runs"][-1]
    rows = merged["rows"]
    passed = sum(one["ok"] for one in rows.values())
    versions = ", ".join(f"{name} {value}" for name, value in where.get("versions", {}).items())
    lines = [
        f"# vLLM matrix on {where.get('device', 'no GPU')}, {where['date'][:10]}",
        "",
        f"{passed} of {len(rows)} rows hold. Tiny models with random weights: they judge code, not quality.",
        "Times are not a benchmark: up to a dozen engines shared the GPU.",
        "",
        f"Device: {where.get('device', '-')}, compute capability {where.get('capability', '-')}, driver "
        f"{where.get('driver', '-')}, {where.get('memory', '-')}. Python {where['python']}, {versions}, nvcc "
        f"{where.get('nvcc') or '-'}. Commits of the runs: "
        + ", ".join(sorted({run.get("commit") or "unknown" for run in merged["runs"]}))
        + ".",
        "",
    ]
    group = None
    for name, one in sorted(rows.items(), key=lambda item: GROUPS.index(item[1]["row"]["group"])):
        if one["row"]["group"] != group:
            group = one["row"]["group"]
            lines += ["", f"## {group}", "", "| row | what is judged | verdict | seen |", "|---|---|---|---|"]
        verdict = "holds" if one["ok"] else one["state"] if one["state"] != "ran" else "**does not hold**"
        seen = [
            f"{'' if check['ok'] else '**not** '}{check['check']}: {seen_in_words(check['seen'])}"
            for check in one["checks"]
        ]
        why = one["record"].get("error") or one["record"].get("skipped")
        cell = "<br>".join([why] if why else seen) or "-"
        lines.append(
            f"| `{name}` | {one['row']['subject']} | {verdict} | {cell.replace('|', chr(92) + '|')} |"
        )
    lines += ["", "## Numbers", ""]
    for name, one in rows.items():
        numbers = {
            k: v for k, v in one["record"].get("numbers", {}).items() if k != "steps" and v not in ({}, None)
        }
        if numbers:
            lines.append(f"- `{name}`: " + "; ".join(f"{k} {number(v)}" for k, v in numbers.items()))
    return "\n".join(lines) + "\n"


def write(parts: list[Mapping[str, Any]], folder: Path, note: str = "") -> tuple[Path, Path]:
    """Write both files; returns their paths."""
    merged = merge(*parts)
    where = merged["runs"][-1]
    stem = folder / f"vllm-matrix-{slug(str(where.get('device', '')))}-{where['date'][:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    page, data = Path(f"{stem}.md"), Path(f"{stem}.json")
    text = markdown(merged)
    page.write_text(text + (f"\n{note.strip()}\n" if note else ""))
    data.write_text(json.dumps(merged, indent=None, separators=(",", ":"), ensure_ascii=False) + "\n")
    return page, data

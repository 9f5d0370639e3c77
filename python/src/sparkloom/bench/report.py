"""One HTML file without outside assets: tables, plots as inline SVG, verdicts, and the receipt itself."""

from __future__ import annotations

import html
import io
import json
from typing import Any

Row = dict[str, Any]

STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;width:100%}
td,th{padding:.3rem .6rem;border-bottom:1px solid #8886;
text-align:right}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto;background:#fff}
.below{color:#b00}.above,.within{color:#080}.stop{border:2px solid #b00;padding:.5rem 1rem}
pre{overflow:auto;max-height:24rem;font-size:12px}
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    """An HTML table; cells are escaped."""
    top = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in r) + "</tr>" for r in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def num(value: Any, digits: int = 2) -> str:
    """A number for a table cell; a dash where there is none."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "–"


def plot(draw: Any, title: str, ylabel: str) -> str:
    """Run `draw(ax)` on a fresh figure; return it as an SVG element."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    ax = figure.subplots()
    draw(ax)
    ax.set_title(title)
    ax.set_ylabel(ylabel)
    ax.grid(axis="y", alpha=0.3)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def decode_part(case: Row) -> str:
    """Decode: one row and one box for each workload."""
    rows = []
    for name, c in case.items():
        rate, first = c["decode_tps"] or {}, c["ttft_s"] or {}
        acc = [r["acceptance"]["tokens_per_step"] for r in c["runs"] if "acceptance" in r]
        step = [r["ms_per_step"] for r in c["runs"] if "ms_per_step" in r]
        rows.append(
            [
                name,
                num(rate.get("median")),
                f"{num(rate.get('low'))} to {num(rate.get('high'))}",
                num(1000 * first["median"] if first else None, 0),
                num(sorted(step)[len(step) // 2] if step else None),
                num(sorted(acc)[len(acc) // 2] if acc else None),
                num(100 * c["a_a"] if c["a_a"] is not None else None, 1),
            ]
        )
    head = ["workload", "tok/s", "95 % interval", "TTFT ms", "ms/step", "tokens/step", "A/A %"]

    def draw(ax: Any) -> None:
        data = [[r["decode_tps"] for r in c["runs"] if r["decode_tps"]] for c in case.values()]
        ax.boxplot([d or [0.0] for d in data], tick_labels=list(case))
        ax.set_ylim(bottom=0)

    return "<h2>Decode, one stream</h2>" + table(head, rows) + plot(draw, "Decode rate by workload", "tok/s")


def prefill_part(case: Row) -> str:
    """Prefill: rate over prompt length, and the proof of zero hits."""
    rows = [
        [
            name,
            num((c["prefill_tps"] or {}).get("median"), 0),
            num((c["ttft_s"] or {}).get("median")),
            {True: "yes", False: "NO", None: "unknown"}[c["zero_hits"]],
        ]
        for name, c in case.items()
    ]

    def draw(ax: Any) -> None:
        for kind in ("salted", "real"):
            points = [
                (int(n.rsplit("-", 1)[1]), c["prefill_tps"]["median"])
                for n, c in case.items()
                if n.startswith(kind) and c["prefill_tps"]
            ]
            if points:
                ax.plot(*zip(*sorted(points), strict=True), marker="o", label=kind)
        lengths = sorted({int(n.rsplit("-", 1)[1]) for n in case})
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
        ax.set_xlabel("prompt tokens")
        ax.set_ylim(bottom=0)
        ax.legend()

    head = ["case", "tok/s", "TTFT s", "zero cache hits"]
    return "<h2>Cold prefill</h2>" + table(head, rows) + plot(draw, "Cold prefill", "tok/s")


def prefix_part(case: Row) -> str:
    """Prefix: time to first token of each step."""
    rows = [[n, num(r["ttft_s"], 3), num(r["hit_share"], 3)] for n, r in case.items()]

    def draw(ax: Any) -> None:
        ax.bar(list(case), [r["ttft_s"] for r in case.values()])
        ax.tick_params(axis="x", rotation=40)

    return (
        "<h2>Prefix re-use</h2>"
        + table(["step", "TTFT s", "hit share"], rows)
        + plot(draw, "Time to first token", "s")
    )


def concurrency_part(case: Row) -> str:
    """Concurrency: aggregate by wall clock."""
    rows = [
        [
            n,
            num(c["aggregate_tps"]),
            num((c["per_stream_tps"] or {}).get("median")),
            num(1000 * c["ttft_s"]["median"], 0),
        ]
        for n, c in case.items()
    ]

    def draw(ax: Any) -> None:
        ax.bar(list(case), [c["aggregate_tps"] for c in case.values()])
        ax.set_xlabel("streams")

    head = ["streams", "tok/s together", "tok/s a stream", "TTFT ms"]
    return "<h2>Concurrency, wall clock</h2>" + table(head, rows) + plot(draw, "Aggregate", "tok/s")


def agent_part(case: Row) -> str:
    """Agent session: each turn."""
    rows = [
        [str(i + 1), num(r["ttft_s"], 3), num(r["prompt_tokens"], 0), num(r["decode_tps"])]
        for i, r in enumerate(case["turns"])
    ]
    return "<h2>Agent session</h2>" + table(["turn", "TTFT s", "prompt tokens", "tok/s"], rows)


PARTS = {
    "decode": decode_part,
    "prefill": prefill_part,
    "prefix": prefix_part,
    "concurrency": concurrency_part,
    "agent": agent_part,
}


def render(receipt: Row) -> str:
    """The whole page."""
    host, server, watch = receipt["host"], receipt["server"], receipt["watch"]
    gpus = ", ".join(f"{g['name']} (driver {g['driver']})" for g in host["gpus"]) or "no GPU"
    least = watch["min_mem_available_bytes"]
    facts = [
        ["model", str(server["model"])],
        ["server version", str(server["version"])],
        ["started", receipt["started"]],
        ["machine", f"{host['cpu']}, {host['cores']} cores, kernel {host['kernel']}"],
        ["GPUs", gpus],
        ["least memory available", f"{least / 2**30:.2f} GiB" if least else "–"],
        ["SM clock, power", f"{watch['sm_mhz'] or '–'} MHz, {watch['watts'] or '–'} W"],
    ]
    for name, node in (watch.get("nodes") or {}).items():
        free = node["min_mem_available_bytes"]
        cells = [
            f"least memory {free / 2**30:.2f} GiB" if free else "memory –",
            f"SM {node['sm_mhz'] or '–'} MHz, {node['watts'] or '–'} W, {node['celsius'] or '–'} °C",
        ]
        facts.append([f"node {name}", "; ".join(cells)])
    parts = [f"<h1>Benchmark of {html.escape(str(server['model']))}</h1>", table(["", ""], facts)]
    if receipt["obstacles"]:
        items = "".join(f"<li>{html.escape(o)}</li>" for o in receipt["obstacles"])
        parts.append(f'<div class="stop"><b>Not for publication</b><ul>{items}</ul></div>')
    if receipt["verdicts"]:
        rows = "".join(
            f"<tr><td>{html.escape(v['metric'])}</td><td>{num(v['value'])}</td>"
            f"<td>{num(v['low'])} to {num(v['high'])} {v['unit']}</td>"
            f"<td class='{v['verdict'].split()[0]}'>{v['verdict']}</td>"
            f"<td>{html.escape(v['source'])}, {v['date']}</td></tr>"
            for v in receipt["verdicts"]
        )
        parts.append(
            "<h2>Against published bands</h2><table><tr><th>metric</th><th>here</th><th>band</th>"
            f"<th>verdict</th><th>source</th></tr>{rows}</table>"
        )
    parts += [PARTS[name](case) for name, case in receipt["results"].items()]
    raw = html.escape(json.dumps(receipt, indent=1))
    parts.append(f"<h2>Receipt</h2><details><summary>raw JSON</summary><pre>{raw}</pre></details>")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Sparkloom benchmark</title><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )

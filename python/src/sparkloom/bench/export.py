"""Other tools' shapes of the same numbers: sparkDash JSON and a llama-benchy style table."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def sparkdash(receipt: Row) -> list[Row]:
    """Rows of stream count, aggregate and TTFT, as sparkDash lists them.

    Fields: `streams`, `aggregate_tok_s`, `per_stream_tok_s`, `ttft_ms`, `workload`.
    """
    out: list[Row] = []
    for name, case in receipt["results"].get("decode", {}).items():
        if case["decode_tps"]:
            rate = case["decode_tps"]["median"]
            out.append(
                {
                    "workload": name,
                    "streams": 1,
                    "aggregate_tok_s": rate,
                    "per_stream_tok_s": rate,
                    "ttft_ms": round(1000 * case["ttft_s"]["median"], 1),
                }
            )
    for streams, case in receipt["results"].get("concurrency", {}).items():
        out.append(
            {
                "workload": "prose",
                "streams": int(streams),
                "aggregate_tok_s": case["aggregate_tps"],
                "per_stream_tok_s": (case["per_stream_tps"] or {}).get("median"),
                "ttft_ms": round(1000 * case["ttft_s"]["median"], 1),
            }
        )
    return out


def benchy(receipt: Row) -> str:
    """A Markdown table in llama-benchy's manner: ppN rows for prefill, tgN rows for decode."""
    lines = ["| model | test | t/s | ttfr (ms) |", "|:--|--:|--:|--:|"]
    model = receipt["server"]["model"]

    def add(test: str, rate: Row | None, ttft: Row | None) -> None:
        if rate:
            half = (rate["high"] - rate["low"]) / 2
            first = f"{1000 * ttft['median']:.1f}" if ttft else ""
            lines.append(f"| {model} | {test} | {rate['median']:.2f} ± {half:.2f} | {first} |")

    for name, case in receipt["results"].get("prefill", {}).items():
        add(f"pp{name.rsplit('-', 1)[1]} ({name.split('-')[0]})", case["prefill_tps"], case["ttft_s"])
    for name, case in receipt["results"].get("decode", {}).items():
        add(f"tg{receipt['settings']['tokens']} ({name})", case["decode_tps"], case["ttft_s"])
    return "\n".join(lines) + "\n"

"""Several reports on the same traffic, one column each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["comparison"]

_Summary = Mapping[str, Any]


def _milliseconds(metric: str, statistic: str) -> Callable[[_Summary], str]:
    def cell(summary: _Summary) -> str:
        value = summary[metric][statistic]
        return "-" if value is None else f"{value * 1e3:,.1f}"

    return cell


def _count(name: str) -> Callable[[_Summary], str]:
    return lambda summary: f"{summary[name]:,}"


def _share(name: str) -> Callable[[_Summary], str]:
    return lambda summary: f"{summary[name]:.1%}"


_ROWS: tuple[tuple[str, Callable[[_Summary], str]], ...] = (
    ("completed", _count("completed")),
    ("makespan, s", lambda summary: f"{summary['makespan_s']:,.1f}"),
    ("requests/s", lambda summary: f"{summary['request_throughput']:,.2f}"),
    ("output tokens/s", lambda summary: f"{summary['output_token_throughput']:,.1f}"),
    ("ttft p50, ms", _milliseconds("ttft_s", "p50")),
    ("ttft p99, ms", _milliseconds("ttft_s", "p99")),
    ("tpot p50, ms", _milliseconds("tpot_s", "p50")),
    ("tpot p99, ms", _milliseconds("tpot_s", "p99")),
    ("max gap p50, ms", _milliseconds("max_gap_s", "p50")),
    ("max gap p99, ms", _milliseconds("max_gap_s", "p99")),
    ("e2e p99, ms", _milliseconds("e2e_s", "p99")),
    ("passes", _count("passes")),
    ("useful slot-steps", _count("useful_slot_steps")),
    ("padded slot-steps", _count("padded_slot_steps")),
    ("idle slot-steps", _count("idle_slot_steps")),
    ("slot utilisation", _share("slot_utilization")),
    ("kv blocks held", lambda summary: f"{summary['kv_usage']['mean']:.1%}"),
    ("of them tokens", _share("kv_token_share")),
    ("preemptions", _count("preemptions")),
)
_PROMISED: tuple[tuple[str, Callable[[_Summary], str]], ...] = (
    ("goodput, /s", lambda summary: f"{summary['goodput']:,.3f}"),
    ("attainment", lambda summary: f"{summary['attainment']:.2%}"),
)


def comparison(result: Mapping[str, Any]) -> str:
    """Renders reports side by side.

    Args:
        result: `workload`, and `runs` with a `name` and a `summary` each.

    Returns:
        Lines without trailing spaces, ending in a newline.
    """
    runs = result["runs"]
    chosen = list(_ROWS)
    if runs[0]["summary"]["goodput"] is not None:
        chosen += _PROMISED
    chosen.append(("verdict", lambda summary: summary["verdict"] or "-"))
    head = [f"{result['workload']['requests']:,} requests", *(run["name"] for run in runs)]
    rows = [head, *([name, *(cell(run["summary"]) for run in runs)] for name, cell in chosen)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        row[0].ljust(widths[0])
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines) + "\n"

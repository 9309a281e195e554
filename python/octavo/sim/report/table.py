"""The report of a run as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["table"]

# Metric, its key in the summary, its formula, and how it is scaled.
_METRICS = (
    ("ttft", "ttft_s", "first token - arrival", 1e3),
    ("tpot", "tpot_s", "(last - first) / (n - 1), n >= 2", 1e3),
    ("itl", "itl_s", "every gap between tokens", 1e3),
    ("max gap", "max_gap_s", "longest gap of a request", 1e3),
    ("e2e", "e2e_s", "last token - arrival", 1e3),
)
_STATISTICS = ("mean", "p50", "p90", "p99", "min", "max")
# Below this many values a 99th percentile is one or two of them.
_FEW = 1_000


def table(report: Mapping[str, Any]) -> str:
    """Renders a report; times are in milliseconds.

    Args:
        report: The dictionary of the JSON report.

    Returns:
        Lines without trailing spaces, ending in a newline.
    """
    config, summary = report["config"], report["summary"]
    lines = [*_head(config, summary), "", *_distributions(summary), "", *_counters(summary)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(config: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    unfinished = summary["requests"] - summary["completed"] - summary["rejected"]
    requests = f"{summary['completed']:,} of {summary['requests']:,} completed"
    if summary["rejected"]:
        requests += f", {summary['rejected']:,} rejected: the prompt can never fit"
    if unfinished:
        requests += f", {unfinished:,} ended for lack of capacity"
    pool = f"{config['num_blocks']:,} blocks of {config['block_size']} tokens"
    rows = f"{config['max_num_seqs']} rows, {config['max_num_batched_tokens']:,} tokens a pass"
    rate = f"{summary['request_throughput']:,.3f} requests/s"
    span = f"{summary['makespan_s']:,.1f} s from the first arrival to the last token"
    lines = [
        f"scheduler   {config['batching']}, {config['policy']}, {rows}, {pool}",
        f"requests    {requests}",
        f"makespan    {span}, {summary['passes']:,} passes",
        f"throughput  {rate}, {summary['output_token_throughput']:,.1f} output tokens/s",
    ]
    steady = summary["steady"]
    if steady is not None:
        rates = f"{steady['request_throughput']:,.3f} requests/s, "
        rates += f"{steady['output_token_throughput']:,.1f} output tokens/s"
        lines.append(f"steady      {rates}, without the first and last 10% of completions")
    return lines


def _distributions(summary: Mapping[str, Any]) -> list[str]:
    rows = [["ms", *_STATISTICS, "n"]]
    marked = False
    for name, key, _, scale in _METRICS:
        values = summary[key]
        few = 0 < values["n"] < _FEW
        marked |= few
        cells = [_cell(values[which], scale) for which in _STATISTICS]
        cells[_STATISTICS.index("p99")] += "*" if few else ""
        rows.append([name, *cells, f"{values['n']:,}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formulas = ["", *(formula for _, _, formula, _ in _METRICS)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(10)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + f"   {formula}"
        for row, formula in zip(rows, formulas, strict=True)
    ]
    if marked:
        lines.append(f"* fewer than {_FEW:,} values: a 99th percentile of so few says little")
    return lines


def _cell(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:,.1f}"


def _counters(summary: Mapping[str, Any]) -> list[str]:
    usage = summary["kv_usage"]
    mean, peak = f"{usage['mean']:.1%}", f"{usage['peak']:.1%}"
    hits, queries = summary["prefix_hit_tokens"], summary["prefix_query_tokens"]
    share = f" ({hits / queries:.1%})" if queries else ""
    again = f"{summary['recomputed_tokens']:,} tokens computed again"
    used = f"{summary['slot_utilization']:.1%} used in passes that decode"
    slots = (f"{summary[f'{kind}_slot_steps']:,} {kind}" for kind in ("useful", "padded", "idle"))
    parts = (f"{name} {value * 1e3:,.1f}" for name, value in summary["ttft_parts_s"].items())
    bound = summary["memory_bound_share"]
    tokens = f"{summary['kv_token_share']:.1%} of their slots with tokens"
    lines = [
        f"mean ttft   {' + '.join(parts)} ms",
        f"passes      {bound:.1%} bound by memory, the others by arithmetic",
        f"kv cache    {mean} of the blocks held on average over time, {peak} at the peak; {tokens}",
        f"prefixes    {hits:,} of {queries:,} prompt tokens found{share}",
        f"preemptions {summary['preemptions']:,}, {again}",
        f"slots       {used}: {', '.join(slots)}",
    ]
    if summary["goodput"] is not None:
        kept = f"{summary['goodput']:,.3f} requests/s kept every promise"
        lines.append(f"goodput     {kept}, {summary['attainment']:.2%} of all arrivals")
    if summary["verdict"] is not None:
        lines.append(f"verdict     {summary['verdict']}")
    return lines

"""`octavo simulate`: one run of the scheduler in virtual time."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from octavo.cli.frame import Parser, ProgressLine, UsageError
from octavo.sim.report import table
from octavo.sim.simulation import Simulation, default_settings, simulate
from octavo.sim.traces import read_trace
from octavo.sim.workload import Workload, festival, plain

__all__ = ["add_to"]

_RATE = math.inf
_MADE = {"num_requests": 1_000, "input_len": 1_000, "output_len": 300}
_PROMISES = ("ttft", "tpot", "e2e")

_COUNTS = {
    "max_num_seqs": "rows of the batch",
    "max_num_batched_tokens": "tokens of a pass",
    "max_partial_prefills": "prompts left incomplete after a pass",
    "long_prefill_threshold": "cap on a prompt's tokens in a pass while others wait, 0 for none",
    "block_size": "tokens of a KV block",
    "num_blocks": "KV blocks of the pool, instead of what memory leaves",
}
_NUMBERS = {
    "watermark": "share of the pool kept available at admission",
    "weight_bytes": "W, bytes of the weights",
    "kv_bytes_per_token": "k, KV bytes of a token",
    "bandwidth": "BW, bytes/s",
    "flop_per_token": "f, FLOP a token",
    "peak_flops": "F, effective FLOP/s",
    "overhead": "h, seconds a pass",
    "memory": "bytes of GPU memory",
    "reserved": "bytes that are neither weights nor KV cache",
}
_NAMES = {
    "batching": "how prompts and decodes share a pass",
    "policy": "who goes first",
    "preemption": "how a running sequence loses its blocks",
    "combine": "max or sum: memory and arithmetic overlap, or not",
    "kv_read": "tokens or blocks: what KV reads are counted in",
}


def add_to(verbs: Any) -> None:
    """Adds the verb to the command's parser."""
    parser: Parser = verbs.add_parser(
        "simulate",
        help="one run, in virtual time",
        description="Runs the scheduler in virtual time. Without flags: the festival sale, "
        "an ordinary hour of 0.6 requests/s and ten minutes of 6.0/s after the sale opens.",
    )
    parser.set_defaults(run=_run)
    _add_traffic(parser.add_argument_group("traffic"))
    _add_settings(parser)
    _add_output(parser.add_argument_group("output"))


def _add_traffic(group: Any) -> None:
    group.add_argument("--trace", metavar="FILE", help="Azure CSV, Mooncake JSONL or Octavo CSV")
    group.add_argument("--skip-bad-rows", action="store_true", help="leave out broken rows")
    group.add_argument("--limit", type=_count, metavar="N", help="the first N requests only")
    group.add_argument(
        "--time-scale", type=_number, metavar="X", help="multiply arrivals: 0.5 is twice the rate"
    )
    group.add_argument("--seed", type=_count, default=0, metavar="N", help="of made traffic (0)")
    group.add_argument(
        "--request-rate", type=_number, metavar="X", help="Poisson arrivals/s; inf: all at 0"
    )
    for name, default in _MADE.items():
        group.add_argument(
            _flag(name), type=_count, metavar="N", help=f"of made traffic ({default:,})"
        )


def _add_settings(parser: Parser) -> None:
    defaults = default_settings()
    group = parser.add_argument_group("scheduler, machine and cost model")
    kinds = ((_COUNTS, _count, "N"), (_NUMBERS, _number, "X"), (_NAMES, str, "NAME"))
    for table_of, kind, metavar in kinds:
        for name, text in table_of.items():
            help_text = f"{text} ({defaults[name]})".replace("%", "%%")
            group.add_argument(_flag(name), type=kind, metavar=metavar, help=help_text)
    group.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether prompts look for their prefixes (yes)",
    )
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help="promises, such as ttft:500 tpot:50, in ms"
    )


def _add_output(group: Any) -> None:
    group.add_argument("--json", metavar="PATH", help="the report; - prints it alone")
    group.add_argument("--csv", metavar="PATH", help="one line per request; - prints it alone")
    group.add_argument("--export-trace", metavar="PATH", help="the traffic of this run as a trace")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _run(options: argparse.Namespace) -> int:
    outputs = ("json", "csv", "export_trace")
    to_stdout = [f"{_flag(name)} -" for name in outputs if getattr(options, name) == "-"]
    if len(to_stdout) > 1:
        raise UsageError(f"{' and '.join(to_stdout)} cannot share standard output")
    settings = _settings(options)
    workload = _workload(options)
    progress = ProgressLine()
    run = simulate(workload, observer=progress, **settings)
    wall_s = progress.close()
    _write(options, workload, run)
    if not to_stdout:
        sys.stdout.write(table(run.report))
    print(f"simulated {len(workload):,} requests in {wall_s:.2f} s", file=sys.stderr)
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    names = [*_COUNTS, *_NUMBERS, *_NAMES, "prefix_caching"]
    settings = {name: getattr(options, name) for name in names}
    for promise in options.goodput or ():
        name, _, bound = promise.partition(":")
        if name not in _PROMISES:
            raise UsageError(
                f"--goodput {promise}: expected one of {', '.join(_PROMISES)}, as ttft:500"
            )
        try:
            milliseconds = float(bound)
        except ValueError:
            raise UsageError(f"--goodput {promise}: {bound!r} is not a number of ms") from None
        settings[f"{name}_s"] = milliseconds / 1000
    return settings


def _workload(options: argparse.Namespace) -> Workload:
    made = {name: getattr(options, name) for name in ("request_rate", *_MADE)}
    given = [_flag(name) for name, value in made.items() if value is not None]
    if options.trace is not None:
        if given:
            raise UsageError(f"{given[0]} makes traffic, but --trace brings its own")
        trace = read_trace(options.trace, skip_bad_rows=options.skip_bad_rows)
        for note in trace.notes:
            print(f"{Path(options.trace).name}: {note}", file=sys.stderr)
        workload = trace.workload()
    elif given:
        rate = _RATE if options.request_rate is None else options.request_rate
        counts = {name: made[name] if made[name] is not None else _MADE[name] for name in _MADE}
        workload = plain(request_rate=rate, seed=options.seed, **counts)
    else:
        workload = festival(options.seed)
    return _reshaped(workload, options)


def _reshaped(workload: Workload, options: argparse.Namespace) -> Workload:
    if options.time_scale is not None:
        if not (math.isfinite(options.time_scale) and options.time_scale >= 0):
            raise UsageError(f"--time-scale {options.time_scale}: a finite number at or above 0")
        workload = workload.scale_time(options.time_scale)
    if options.limit is not None:
        if options.limit < 1:
            raise UsageError(f"--limit {options.limit}: at least one request")
        workload = workload.truncate(options.limit)
    return workload


def _write(options: argparse.Namespace, workload: Workload, run: Simulation) -> None:
    if options.json is not None:
        _write_text(options.json, run.json() + "\n")
    if options.csv is not None:
        _write_text(options.csv, run.csv())
    if options.export_trace is not None:
        _write_text(options.export_trace, workload.trace_csv())


def _write_text(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8", newline="")

"""Flags that verbs share: the traffic, and the settings of a run."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from octavo.cli.frame import Parser, UsageError
from octavo.sim.presets import PRESETS, preset
from octavo.sim.simulation import default_settings
from octavo.sim.traces import read_trace
from octavo.sim.workload import Workload, festival, plain

__all__ = ["add_settings", "add_traffic", "count", "flag", "number", "settings", "workload"]

_MADE = ("num_requests", "request_rate", "burstiness", "concurrency", "input_len", "output_len")
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
    "aging": "rank gained per second of waiting",
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
    "reserve": "on_demand or worst_case: the blocks an admission takes",
    "preemption": "how a running sequence loses its blocks",
    "victim": "who loses them",
    "combine": "max or sum: memory and arithmetic overlap, or not",
    "kv_read": "tokens or blocks: what KV reads are counted in",
}


def add_traffic(group: Any) -> None:
    """Adds the flags that say what arrives."""
    group.add_argument("--trace", metavar="FILE", help="Azure CSV, Mooncake JSONL or Octavo CSV")
    group.add_argument("--skip-bad-rows", action="store_true", help="leave out broken rows")
    group.add_argument("--limit", type=count, metavar="N", help="the first N requests only")
    group.add_argument(
        "--time-scale", type=number, metavar="X", help="multiply arrivals: 0.5 is twice the rate"
    )
    group.add_argument("--seed", type=count, default=0, metavar="N", help="of made traffic (0)")
    group.add_argument(
        "--request-rate", type=number, metavar="X", help="arrivals/s; inf: all at 0 (inf)"
    )
    group.add_argument(
        "--burstiness",
        type=number,
        metavar="X",
        help="gamma shape of the time between arrivals: 1 is Poisson, less is burstier, inf even",
    )
    group.add_argument(
        "--concurrency",
        type=count,
        metavar="N",
        help="a closed loop: users who send the next request when their last has ended",
    )
    group.add_argument("--num-requests", type=count, metavar="N", help="of made traffic (1,000)")
    lengths = "N, uniform:LEAST:MOST or lognormal:MEAN:SIGMA[:LEAST:MOST]"
    group.add_argument("--input-len", metavar="LEN", help=f"prompts (1000): {lengths}")
    group.add_argument("--output-len", metavar="LEN", help="answers (300), likewise")


def add_settings(parser: Parser) -> None:
    """Adds a flag for each setting of a run."""
    defaults = default_settings()
    group = parser.add_argument_group("scheduler, machine and cost model")
    group.add_argument("--preset", metavar="NAME", help=f"settings by name: {', '.join(PRESETS)}")
    kinds = ((_COUNTS, count, "N"), (_NUMBERS, number, "X"), (_NAMES, str, "NAME"))
    for table_of, kind, metavar in kinds:
        for name, text in table_of.items():
            help_text = f"{text} ({defaults[name]})".replace("%", "%%")
            group.add_argument(flag(name), type=kind, metavar=metavar, help=help_text)
    group.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether prompts look for their prefixes (yes)",
    )
    group.add_argument(
        "--wait-for-full",
        action="store_true",
        default=None,
        help="a static batch begins when it is full, or nobody comes any more",
    )
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help="promises, such as ttft:500 tpot:50, in ms"
    )


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def count(text: str) -> int:
    """Reads a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """Reads a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the flags give; None where a flag was not given."""
    names = [*_COUNTS, *_NUMBERS, *_NAMES, "prefix_caching", "wait_for_full"]
    given = {name: getattr(options, name) for name in names}
    chosen = preset(options.preset) if options.preset is not None else {}
    chosen |= {name: value for name, value in given.items() if value is not None}
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
        chosen[f"{name}_s"] = milliseconds / 1000
    return chosen


def workload(options: argparse.Namespace) -> Workload:
    """The traffic that the flags describe."""
    made = {name: getattr(options, name) for name in _MADE}
    made = {name: value for name, value in made.items() if value is not None}
    given = [flag(name) for name in made]
    if options.trace is not None:
        if given:
            raise UsageError(f"{given[0]} makes traffic, but --trace brings its own")
        trace = read_trace(options.trace, skip_bad_rows=options.skip_bad_rows)
        for note in trace.notes:
            print(f"{Path(options.trace).name}: {note}", file=sys.stderr)
        made_of = trace.workload()
    elif given:
        if options.concurrency is not None:
            paced = [name for name in ("request_rate", "burstiness") if name in made]
            if paced:
                raise UsageError(f"{flag(paced[0])} paces arrivals, but --concurrency makes a loop")
        made_of = plain(seed=options.seed, **made)
    else:
        made_of = festival(options.seed)
    return _reshaped(made_of, options)


def _reshaped(made: Workload, options: argparse.Namespace) -> Workload:
    if options.time_scale is not None:
        if not (math.isfinite(options.time_scale) and options.time_scale >= 0):
            raise UsageError(f"--time-scale {options.time_scale}: a finite number at or above 0")
        made = made.scale_time(options.time_scale)
    if options.limit is not None:
        if options.limit < 1:
            raise UsageError(f"--limit {options.limit}: at least one request")
        made = made.truncate(options.limit)
    return made

"""`octavo simulate`: one run of the scheduler in virtual time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli import options
from octavo.cli.frame import Parser, ProgressLine, UsageError
from octavo.sim.report import table
from octavo.sim.simulation import Simulation, simulate

if TYPE_CHECKING:
    from octavo.sim.workload import Workload

__all__ = ["add_to"]


def add_to(verbs: Any) -> None:
    """Adds the verb to the command's parser."""
    parser: Parser = verbs.add_parser(
        "simulate",
        help="one run, in virtual time",
        description="Runs the scheduler in virtual time. Without flags: the festival sale, "
        "an ordinary hour of 0.6 requests/s and ten minutes of 6.0/s after the sale opens.",
    )
    parser.set_defaults(run=_run)
    options.add_traffic(parser.add_argument_group("traffic"))
    options.add_settings(parser)
    _add_output(parser.add_argument_group("output"))


def _add_output(group: Any) -> None:
    group.add_argument("--json", metavar="PATH", help="the report; - prints it alone")
    group.add_argument("--csv", metavar="PATH", help="one line per request; - prints it alone")
    group.add_argument("--export-trace", metavar="PATH", help="the traffic of this run as a trace")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _run(words: argparse.Namespace) -> int:
    outputs = ("json", "csv", "export_trace")
    to_stdout = [f"{options.flag(name)} -" for name in outputs if getattr(words, name) == "-"]
    if len(to_stdout) > 1:
        raise UsageError(f"{' and '.join(to_stdout)} cannot share standard output")
    if words.export_trace is not None and words.concurrency is not None:
        raise UsageError("--export-trace: in a closed loop (--concurrency) arrivals are results")
    settings = options.settings(words)
    workload = options.workload(words)
    progress = ProgressLine()
    run = simulate(workload, observer=progress, **settings)
    wall_s = progress.close()
    _write(words, workload, run)
    if not to_stdout:
        sys.stdout.write(table(run.report))
    print(f"simulated {len(workload):,} requests in {wall_s:.2f} s", file=sys.stderr)
    return 0


def _write(words: argparse.Namespace, workload: Workload, run: Simulation) -> None:
    if words.json is not None:
        _write_text(words.json, run.json() + "\n")
    if words.csv is not None:
        _write_text(words.csv, run.csv())
    if words.export_trace is not None:
        _write_text(words.export_trace, workload.trace_csv())


def _write_text(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8", newline="")

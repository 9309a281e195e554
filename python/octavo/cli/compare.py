"""`octavo compare`: several schedulers on the same arrivals, side by side."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from octavo.cli import options
from octavo.cli.frame import Parser, ProgressLine
from octavo.sim.report import comparison
from octavo.sim.simulation import simulate

__all__ = ["add_to"]

# What may be a list of names; the product of the lists is compared.
_VARIED = ("batching", "policy", "reserve", "victim")
_BATCHINGS = "serial,static,continuous,mixed,chunked"


def add_to(verbs: Any) -> None:
    """Adds the verb to the command's parser."""
    parser: Parser = verbs.add_parser(
        "compare",
        help="several schedulers on the same arrivals",
        description="Runs the same traffic through several schedulers: --batching, --policy, "
        "--reserve and --victim take lists (serial,static). Without any: all batchings.",
    )
    parser.set_defaults(run=_run)
    options.add_traffic(parser.add_argument_group("traffic"))
    options.add_settings(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="PATH", help="all reports; - prints them alone")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _run(words: argparse.Namespace) -> int:
    if all(getattr(words, name) is None for name in _VARIED):
        words.batching = _BATCHINGS
    settings = options.settings(words)
    workload = options.workload(words)
    progress = ProgressLine()
    runs: list[dict[str, Any]] = []
    traffic: dict[str, Any] = {}
    for name, chosen in _variants(settings):
        report = simulate(workload, observer=progress, **(settings | chosen)).report
        traffic = report["workload"]
        runs.append({"name": name, "config": report["config"], "summary": report["summary"]})
    wall_s = progress.close()
    result = {"workload": traffic, "runs": runs}
    if words.json == "-":
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        if words.json is not None:
            Path(words.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(comparison(result))
    print(
        f"simulated {len(workload):,} requests {len(runs)} times in {wall_s:.2f} s", file=sys.stderr
    )
    return 0


def _variants(settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The schedulers to compare, each with the names that tell it from the others."""
    lists = {name: str(settings[name]).split(",") for name in _VARIED if name in settings}
    varied = [name for name, values in lists.items() if len(values) > 1] or list(lists)
    variants = [
        dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())
    ]
    return [(" ".join(variant[name] for name in varied), variant) for variant in variants]

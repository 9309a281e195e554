"""Holds what was measured against the budgets, and prints one table.

    python benches/table.py                 the table of the last `make bench`
    python benches/table.py --write         the same, also into the README

`budgets.toml` has the budgets and says where each figure comes from.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "benches" / "budgets.toml"
BEGIN, END = "<!-- budgets: make bench -->", "<!-- end of budgets -->"
SOURCES = ("criterion", "python", "memory", "ratios")
NONE = "-"
HEAD = ("work", "budget", "reached", "reached / budget", "spread")

# What a figure is multiplied by: times are measured in seconds.
SCALES = {"ns": 1e9, "µs": 1e6, "ms": 1e3, "s": 1, "B": 1, "x": 1, "M/s": 1e-6, "k/s": 1e-3}


@dataclass(frozen=True)
class Figure:
    """A median, and half the distance of the quartiles as a share of it."""

    median: float
    spread: float = 0.0
    counts: dict | None = None

    @classmethod
    def of(cls, values, counts=None):
        values = list(values)
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive")
            if (len(values) > 1)
            else values * 3
        )
        return cls(median, (high - low) / 2 / median, counts)


class MissingError(Exception):
    """A figure that was not measured; the message says why."""


def results_folder():
    """Where the measurements leave their results: `octavo-bench` under cargo's target folder."""
    return target_folder() / "octavo-bench"


def target_folder():
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(json.loads(told.stdout)["target_directory"])


# --- what was measured ---------------------------------------------------------------------------


def read_criterion(folder):
    """The time of an iteration, by the name of the benchmark: `folder` is target/criterion."""
    figures = {}
    for path in sorted(folder.glob("**/new/sample.json")):
        named = json.loads((path.parent / "benchmark.json").read_text(encoding="utf-8"))
        sample = json.loads(path.read_text(encoding="utf-8"))
        pairs = zip(sample["times"], sample["iters"], strict=True)
        figures[named["full_id"]] = Figure.of(time / iters * 1e-9 for time, iters in pairs)
    return figures


def read_python(path):
    """The rounds of pytest-benchmark by the name of the test, and why others were skipped."""
    told = json.loads(path.read_text(encoding="utf-8"))
    figures = {}
    for test in told["benchmarks"]:
        stats, counts = test["stats"], test["extra_info"]
        spread = (stats["q3"] - stats["q1"]) / 2 / stats["median"]
        figures[test["name"]] = Figure(stats["median"], spread, counts)
    return figures, told.get("skipped", {})


def read_numbers(path):
    """Exact numbers by name, which have no spread."""
    told = json.loads(path.read_text(encoding="utf-8"))
    return {name: Figure(value) for name, value in told.items()}


@dataclass
class Measured:
    """All figures by source and name, and the reasons for those that are not there."""

    figures: dict
    reasons: dict

    @classmethod
    def read(cls, target):
        folder = target / "octavo-bench"
        figures = {name: {} for name in SOURCES}
        figures["criterion"] = read_criterion(target / "criterion")
        reasons = {}
        if (folder / "python.json").exists():
            figures["python"], reasons = read_python(folder / "python.json")
        for name in ("memory", "ratios"):
            if (folder / f"{name}.json").exists():
                figures[name] = read_numbers(folder / f"{name}.json")
        return cls(figures, reasons)

    def figure(self, source, name):
        if name in self.figures[source]:
            return self.figures[source][name]
        command = "make bench-instructions" if source == "ratios" else "make bench"
        raise MissingError(self.reasons.get(name, f"not measured: {command}"))


# --- against the budgets -------------------------------------------------------------------------


def read_budgets(path=BUDGETS):
    """The rows, each with as many figures as budgets."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["row"]
    for row in rows:
        if len(row["figures"]) != len(row["budget"]):
            raise ValueError(f"{row['row']}: {len(row['budget'])} budgets, not as many figures")
        if row["unit"] not in SCALES:
            raise ValueError(f"{row['row']}: no unit {row['unit']}")
    return rows


def evaluate(figure, unit, measured):
    """What a figure of the budgets came to, in its unit.

    Raises:
        MissingError: It was not measured.
    """
    [source] = [name for name in SOURCES if name in figure]
    found = measured.figure(source, figure[source])
    value, spread = found.median / figure.get("per", 1), found.spread
    if "over" in figure:
        base = measured.figure(source, figure["over"])
        value, spread = value / base.median, spread + base.spread
        if "each" in figure:
            value *= base.counts[figure["each"]] / found.counts[figure["each"]]
    if "rate" in figure:
        value = found.counts[figure["rate"]] / value
    return Figure(value * SCALES[unit], spread)


@dataclass
class Line:
    """A row of the table."""

    cells: tuple
    kept: int
    measured: int
    notes: list


def line(row, measured):
    is_least = row.get("bound") == "least"
    reached, ratios, spreads, notes, kept = [], [], [], [], 0
    for budget, figure in zip(row["budget"], row["figures"], strict=True):
        try:
            found = evaluate(figure, row["unit"], measured)
        except MissingError as missing:
            notes.append(str(missing))
            for cell in (reached, ratios, spreads):
                cell.append(NONE)
            continue
        ratio = found.median / budget
        kept += ratio >= 1 if is_least else ratio <= 1
        reached.append(number(found.median))
        ratios.append(f"{ratio:.2f}")
        spreads.append(f"{found.spread * 100:.0f}")
    sign = "≥" if is_least else "≤"
    budgets = f"{sign} {' / '.join(f'{most:g}' for most in row['budget'])} {row['unit']}"
    percent = " %" if set(spreads) != {NONE} else ""
    values = f"{' / '.join(reached)} {row['unit']}"
    cells = (row["work"], budgets, values, " / ".join(ratios), f"± {' / '.join(spreads)}{percent}")
    return Line(cells, kept, len(ratios) - ratios.count(NONE), notes)


def number(value):
    """Three digits, without an exponent."""
    if value == int(value):
        return f"{int(value):,}"
    digits = 3 - len(f"{int(abs(value))}") if abs(value) >= 1 else 3
    return f"{value:,.{max(digits, 0)}f}"


def render(rows, measured):
    """The table in Markdown, and what is missing below it."""
    lines = [line(row, measured) for row in rows]
    table = [HEAD, *(found.cells for found in lines)]
    widths = [max(len(cells[at]) for cells in table) for at in range(len(HEAD))]

    def shown(cells):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    text = [shown(HEAD), shown(["-" * width for width in widths])]
    text += [shown(found.cells) for found in lines]
    total = sum(len(row["budget"]) for row in rows)
    kept, seen = sum(found.kept for found in lines), sum(found.measured for found in lines)
    text += ["", f"{kept} of {total} figures keep their budget, {total - seen} were not measured."]
    missing = [
        f"{row['row']}: {reason}."
        for row, found in zip(rows, lines, strict=True)
        for reason in dict.fromkeys(found.notes)
    ]
    return "\n".join([*text, *missing])


def section(text):
    """What stands between the marks of the README."""
    found = re.search(f"{re.escape(BEGIN)}\n(.*?)\n{re.escape(END)}", text, re.DOTALL)
    if found is None:
        raise ValueError(f"no lines {BEGIN} … {END}")
    return found


def write(path, table):
    """Puts the table between the marks."""
    text = path.read_text(encoding="utf-8")
    inside = section(text)
    written = f"{text[: inside.start(1)]}{table}{text[inside.end(1) :]}"
    path.write_text(written, encoding="utf-8", newline="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into the README too")
    words = parser.parse_args()
    target = target_folder()
    about = results_folder() / "about.txt"
    table = render(read_budgets(), Measured.read(target))
    if about.exists():
        table = f"{about.read_text(encoding='utf-8').strip()}\n\n{table}"
    print(table)
    if words.write:
        write(ROOT / "README.md", table)


if __name__ == "__main__":
    main()

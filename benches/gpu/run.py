"""Checks and measures the kernels on this machine's card, section by section, and prints one table.

    python benches/gpu/run.py [--out FOLDER] [--only NAME …] [--limit SECONDS]
                              [--backend MODULE:ATTRIBUTE] [--tiny]

Each section is a process of its own with a limit: one that fails or takes too long is told, and the
others still run. The exit status is 0 where all of them did their work, 1 where one did not, and 2
where there is nothing to run on. What was found is also written to gpu.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rows import Row, table

HERE = Path(__file__).resolve().parent
# Seconds that all sections have together: less than six minutes, with the start of each.
TOTAL = 340.0
# With less left, a section is not begun.
_LEAST = 3


@dataclass(frozen=True)
class Section:
    """A file beside this one, and the most seconds it may take.

    One that is not needed may fail: it is told, and the exit status does not change.
    """

    name: str
    seconds: float
    title: str
    is_needed: bool = True


SECTIONS = (
    Section("card", 30, "the card"),
    Section("compiling", 90, "compiled"),
    Section("parity", 90, "parity with the reference in float64"),
    Section("graphs", 30, "graphs"),
    Section("copies", 50, "moving memory"),
    Section("decodes", 75, "decode"),
    Section("prefills", 40, "prefill"),
    Section("tokens", 75, "a whole model"),
    Section("far", 40, "beyond 2^31 elements"),
    Section("sanitizers", 90, "sanitizers"),
    Section("others", 60, "beside other libraries", is_needed=False),
)


@dataclass
class Result:
    """What became of a section."""

    section: Section
    rows: list[Row]
    status: str
    seconds: float

    @property
    def is_good(self):
        return self.status == "done" or not self.section.is_needed


def run(section, words, folder, left):
    """Runs a section for no longer than it may take, and what is left for all of them."""
    limit = min(section.seconds, left)
    if limit < _LEAST:
        return Result(section, [], "not run: the time for all sections is over", 0.0)
    print(f"== {section.name} (at most {limit:.0f} s)", file=sys.stderr, flush=True)
    out = folder / f"{section.name}.jsonl"
    out.unlink(missing_ok=True)
    command = [sys.executable, HERE / f"{section.name}.py", "--out", out, *words]
    paths = os.environ.get("OCTAVO_MODEL_PATH") if section.name == "tokens" else None
    environment = {**os.environ, "PYTHONPATH": paths} if paths else None
    start = time.monotonic()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait(limit)
        status = "done" if code == 0 else f"failed with exit status {code}"
    except subprocess.TimeoutExpired:
        status = f"stopped after {limit:.0f} s"
    finally:
        # With whatever it has started.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - start
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return Result(section, [Row.of(line) for line in lines], status, seconds)


def commit():
    """The commit that is measured: git's, or what OCTAVO_COMMIT says where there is no git."""
    told = os.environ.get("OCTAVO_COMMIT")
    if told:
        return told
    command = ["git", "-C", HERE, "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def report(results):
    """The table: every section's rows, and what became of it."""
    titled = []
    for result in results:
        title = f"{result.section.title}: {result.status}, {result.seconds:.0f} s"
        titled.append((title, result.rows))
    return table(titled)


def write(path, results):
    day = datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds")
    sections = {
        result.section.name: {
            "status": result.status,
            "seconds": round(result.seconds, 1),
            "rows": [json.loads(row.line()) for row in result.rows],
        }
        for result in results
    }
    content = {"commit": commit(), "date": day, "sections": sections}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "target" / "octavo-gpu")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in SECTIONS])
    parser.add_argument("--backend")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--limit", type=float, default=TOTAL, help="the most seconds of a section")
    given = parser.parse_args()
    words = ["--tiny"] if given.tiny else []
    words += ["--backend", given.backend] if given.backend else []
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [
        one for one in SECTIONS if one.name == "card" or one.name in (given.only or [one.name])
    ]
    start, results = time.monotonic(), []
    for section in wanted:
        left = min(given.limit, TOTAL - (time.monotonic() - start))
        results.append(run(section, words, given.out, left))
        if section.name == "card" and not results[0].is_good:
            print("benches/gpu: there is no card to run on, see above", file=sys.stderr)
            return 2
    write(given.out / "gpu.json", results)
    print(report(results), flush=True)
    failed = [result.section.name for result in results if not result.is_good]
    if failed:
        print(f"benches/gpu: {', '.join(failed)} did not do their work", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

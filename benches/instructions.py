"""Counts the instructions of a decode step and its commit, which noise does not touch.

    python benches/instructions.py

The same work is counted in a small and in a large pool, and with few and with many waiting; a
ratio above 1.05 ends the program with 1. Needs valgrind.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import table

MOST = 1.05
STEPS = 48
COUNTED = "*instructions::counted*"


def own_pool(rows):
    """The blocks that `rows` need for prompts of 512 and the steps of a benchmark."""
    return rows * 100


# Name, rows, blocks, fill, waiting: the second of a ratio is the larger.
RATIOS = {
    "pool_fresh": [(256, 10_000, "fresh", 0), (256, 1_000_000, "fresh", 0)],
    "pool_full": [(256, 10_000, "full", 0), (256, 1_000_000, "full", 0)],
    "waiting": [(256, own_pool(256), "fresh", 100), (256, own_pool(256), "fresh", 100_000)],
}
SIZES = [
    (rows, own_pool(rows), fill, 0) for rows in (256, 1_024, 4_096) for fill in ("fresh", "full")
]


def build():
    """Builds the program that is counted, and returns its path."""
    command = ["cargo", "bench", "--locked", "--quiet", "-p", "octavo-core", "--no-run"]
    told = subprocess.run(
        [*command, "--bench", "instructions", "--message-format", "json"],
        cwd=table.ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    messages = map(json.loads, told.stdout.splitlines())
    [path] = [
        message["executable"]
        for message in messages
        if message.get("executable") and message["target"]["name"] == "instructions"
    ]
    return path


def count(program, case):
    """The instructions of a step and its commit."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        tool = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"]
        toggle = ["--collect-atstart=no", f"--toggle-collect={COUNTED}"]
        words = [str(word) for word in (*case, STEPS)]
        subprocess.run([*tool, *toggle, program, *words], check=True)
        return total(out.read_text(encoding="utf-8")) / STEPS


def total(text):
    """The instructions of a callgrind file."""
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    if found is None or int(found.group(1)) == 0:
        raise ValueError(f"callgrind counted nothing: is there a function {COUNTED}?")
    return int(found.group(1))


def shape(case):
    rows, blocks, fill, waiting = case
    return f"{rows:,} rows, {blocks:,} blocks {fill}, {waiting:,} waiting"


def main():
    if shutil.which("valgrind") is None:
        sys.exit("Counting instructions needs valgrind: install your system's valgrind package.")
    program = build()
    counts, ratios = {}, {}
    print("| step + commit | instructions | per sequence |\n| --- | --- | --- |")
    for case in [*SIZES, *(case for pair in RATIOS.values() for case in pair)]:
        counts[case] = count(program, case)
        each = counts[case] / case[0]
        print(f"| {shape(case)} | {counts[case]:,.0f} | {each:,.1f} |", flush=True)
    print("\n| ratio | from | to | reached | budget |\n| --- | --- | --- | --- | --- |")
    for name, (small, large) in RATIOS.items():
        ratios[name] = counts[large] / counts[small]
        print(f"| {name} | {shape(small)} | {shape(large)} | {ratios[name]:.4f} | {MOST} |")
    folder = table.results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ratios.json").write_text(json.dumps(ratios), encoding="utf-8")
    above = [name for name, ratio in ratios.items() if ratio > MOST]
    if above:
        sys.exit(f"Above the budget of {MOST}: {', '.join(above)}.")


if __name__ == "__main__":
    main()

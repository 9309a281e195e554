"""Runs every state machine 20,000 times and writes what Hypothesis saw to STATISTICS.md.

    .venv/bin/python tests/python/stateful/write_statistics.py [machine ...]

Machines that are not named keep the section that they have. It takes hours on one core.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPORT = HERE / "STATISTICS.md"
MACHINES = {
    "TestCache": "test_kv_cache.py",
    "TestCollidingCache": "test_kv_cache.py",
    "TestScheduler": "test_scheduler.py",
    "TestCollidingScheduler": "test_scheduler.py",
}
HEADER = """\
# What the state machines saw

Written by `write_statistics.py`: 20,000 examples of up to 20 rules each for every machine, the
package and its naive twin compared after every call. A rule makes up to a dozen calls. Percentages
are the shares of examples in which such a thing happened at least once.
"""
# Lines about Hypothesis's own retries say nothing about the package, and are very long.
NOISE = re.compile(r"Retried draw|gave up because|^\s*$")


def statistics_of(machine: str) -> str:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-m", "", "--timeout=0"),
        *("--hypothesis-profile=once", "--hypothesis-show-statistics"),
        f"{HERE / MACHINES[machine]}::{machine}",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    lines = [
        line.rstrip()
        for line in run.stdout.splitlines()
        if re.match(r"\s+[-*] ", line) and not NOISE.search(line)
    ]
    return f"\n## {machine}\n\n" + "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    before = REPORT.read_text() if REPORT.exists() else ""
    sections = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", before))
    for name in names or MACHINES:
        text = statistics_of(name)
        sections[name] = text.split("\n", 2)[2]
    REPORT.write_text(
        HEADER + "".join(f"\n## {name}\n{sections[name]}" for name in MACHINES if name in sections)
    )


if __name__ == "__main__":
    main(sys.argv[1:])

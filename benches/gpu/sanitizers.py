"""A few cases of parity under compute-sanitizer: memcheck and racecheck."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import machine as machines
from rows import Row

# A library that asks CUDA what it cannot answer is no fault of a kernel.
_TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
_SHOWN = 2_000


def sanitizers(machine):
    program = shutil.which("compute-sanitizer")
    if not machine.is_card or program is None:
        yield Row("compute-sanitizer", note="absent" if machine.is_card else "a dry run")
        return
    parity = Path(__file__).with_name("parity.py")
    words = [sys.executable, parity, "--tiny", "--few", "--no-pool"]
    for tool, more in _TOOLS.items():
        command = [program, "--tool", tool, *more, "--error-exitcode", "86", *words]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode:
            shown = (told.stdout + told.stderr)[-_SHOWN:]
            raise RuntimeError(f"{tool} found something, or did not run:\n{shown}")
        yield Row(f"compute-sanitizer {tool}", note="nothing found")


if __name__ == "__main__":
    machines.run(sanitizers)

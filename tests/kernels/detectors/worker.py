"""Runs seeded bugs and their controls in a process that is, or is not, sanitized.

    python worker.py "" | address | thread

Each kernel runs in a process of its own, forked from this one: a bug may end it. Prints a line of
JSON for each: {"name", "broken", "fired"}.
"""

import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from detectors.seeded import BLOCKS, INPUTS, THREADS, Seeded, seeded
from emulator.launcher import EmulatorError, EmulatorLauncher

ORDERS = ("forward", "reverse", "random:1", "random:2")
# What a sanitizer says before it ends the process.
_WORDS = {
    "address": r"ERROR: AddressSanitizer: ",
    "undefined": r": runtime error: ",
    "race": r"WARNING: ThreadSanitizer: data race",
}


def outputs(bug: Seeded, launcher: EmulatorLauncher, *, broken: bool) -> list[np.ndarray] | str:
    """What the kernel makes of its input in each order; or the emulator's error."""
    x, n = INPUTS[bug.input]()
    made = []
    for launcher.order in ORDERS if sys.argv[1] == "" else ORDERS[:1]:
        y = np.zeros(BLOCKS * THREADS, np.float32)
        args = [y, x, np.int32(n)]
        try:
            launcher.launch(bug.kernel(broken=broken), (BLOCKS, 1, 1), args)
        except EmulatorError as error:
            return str(error)
        made.append(y)
    return made


def in_child(
    bug: Seeded, launcher: EmulatorLauncher, *, broken: bool
) -> tuple[list[np.ndarray] | str | None, str]:
    """Runs `outputs` in a fork: what it returned, None where it died, and what was said."""
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 2)
            pickle.dump(outputs(bug, launcher, broken=broken), result)
            result.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        words = said.read().decode(errors="replace")
        result.seek(0)
        return (pickle.load(result) if status == 0 else None), words  # noqa: S301 - our own fork's


def fired(made: list[np.ndarray] | str | None, words: str, right: list[np.ndarray]) -> list[str]:
    """The names of the detectors that found something."""
    found = [name for name, pattern in _WORDS.items() if re.search(pattern, words)]
    if made is None:
        return found or ["crash"]
    if isinstance(made, str):
        return ["fault"]
    if any(np.isnan(y).any() for y in made):
        found.append("nan")
    if any(not np.array_equal(y, made[0], equal_nan=True) for y in made):
        found.append("order")
    if any(not np.array_equal(y, right[0]) for y in made):
        found.append("value")
    return found


def run_all(sanitize: str) -> Iterator[dict[str, object]]:
    """Runs every bug and its control; in one worker, so that a race is one by right only."""
    launcher = EmulatorLauncher(sanitize=sanitize, workers=1)
    bugs = seeded()
    launcher.prepare_all(kernel for bug in bugs for kernel in bug.kernels())
    for bug in bugs:
        right, words = in_child(bug, launcher, broken=False)
        yield {"name": bug.name, "broken": False, "fired": fired(right, words, right)}
        made, words = in_child(bug, launcher, broken=True)
        yield {"name": bug.name, "broken": True, "fired": fired(made, words, right)}


if __name__ == "__main__":
    for line in run_all(sys.argv[1]):
        sys.stdout.write(json.dumps(line) + "\n")

"""The kernels under other orders of threads and blocks, and under sanitizers: nothing changes."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.launcher import EmulatorLauncher
from emulator.sanitizer import environment
from tour import tour

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def forward():
    return tour(EmulatorLauncher(resident=24, order="forward"))


@pytest.mark.parametrize("order", ["reverse", "random:1", "random:2"])
def test_no_order_of_threads_changes_a_bit(forward, order):
    made = tour(EmulatorLauncher(resident=24, order=order))
    assert len(made) == len(forward)
    for one, other in zip(made, forward, strict=True):
        assert one.tobytes() == other.tobytes()


def sanitized(sanitize):
    return subprocess.run(
        [sys.executable, str(HERE / "tour.py")],
        env=environment(sanitize),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
def test_sanitizers_find_nothing():
    """AddressSanitizer with UndefinedBehaviorSanitizer, and ThreadSanitizer, side by side."""
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(sanitized, ["address", "thread"]))
    for run in done:
        assert run.returncode == 0, run.stderr[-4000:]
        assert "runtime error" not in run.stderr
        assert "WARNING" not in run.stderr

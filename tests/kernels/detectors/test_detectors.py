"""The detectors are tested: each seeded bug is found by those that MATRIX.md names."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from detectors.seeded import seeded
from emulator.sanitizer import environment

HERE = Path(__file__).resolve().parent
# Which run a detector's word is taken from.
DETECTORS = {
    "": ("fault", "nan", "order", "value"),
    "address": ("address", "undefined"),
    "thread": ("race",),
}
# The compilers share two cores with other tests.
pytestmark = pytest.mark.timeout(600)
BUGS = [bug.name for bug in seeded()]


def read_matrix():
    """For each bug the detectors with a mark."""
    text = (HERE / "MATRIX.md").read_text(encoding="utf-8")
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert head == ["bug", *(name for names in DETECTORS.values() for name in names)]
    assert all(set(row[1:]) <= {"", "x"} for row in rows)
    return {
        row[0]: {name for name, mark in zip(head, row, strict=True) if mark == "x"} for row in rows
    }


MATRIX = read_matrix()


def run(sanitize):
    command = [sys.executable, str(HERE / "worker.py"), sanitize]
    done = subprocess.run(
        command, env=environment(sanitize), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {(line["name"], line["broken"]): line["fired"] for line in lines}


@pytest.fixture(scope="module")
def fired():
    """What fired in each kind of run, for each bug and its control."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(DETECTORS, pool.map(run, DETECTORS), strict=True))


def test_every_bug_has_a_row_and_somebody_who_finds_it():
    assert sorted(MATRIX) == BUGS
    assert all(MATRIX.values())


def test_every_detector_has_something_to_find():
    assert set().union(*MATRIX.values()) == set().union(*DETECTORS.values())


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("sanitize", DETECTORS)
def test_bug_is_found_by_whom_it_must_be(fired, sanitize, name):
    expected = MATRIX[name] & set(DETECTORS[sanitize])
    assert expected <= set(fired[sanitize][name, True])


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("sanitize", DETECTORS)
def test_control_is_clean(fired, sanitize, name):
    assert fired[sanitize][name, False] == []

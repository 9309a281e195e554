"""COVERAGE.md and the tests of this folder name the same scenarios."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^\| S(\d{3}) \| (shown|waits) \|(.*)\|$", re.MULTILINE)
TEST = re.compile(r'^def test_s(\d{3})_\w+\(.*?\) -> None:\n    """', re.MULTILINE | re.DOTALL)


def test_coverage_lists_every_scenario_once_with_its_state() -> None:
    rows = ROW.findall((HERE / "COVERAGE.md").read_text())
    numbers = [number for number, _, _ in rows]
    assert len(numbers) == len(set(numbers)) > 50
    assert all(note.strip() for _, state, note in rows if state == "waits")


def test_coverage_shows_exactly_the_scenarios_that_have_tests() -> None:
    rows = ROW.findall((HERE / "COVERAGE.md").read_text())
    tests = [
        number
        for path in HERE.glob("test_*.py")
        for number in re.findall(r"^def test_s(\d{3})_", path.read_text(), re.MULTILINE)
    ]
    assert {number for number, state, _ in rows if state == "shown"} == set(tests)


def test_every_scenario_test_tells_its_recipe() -> None:
    for path in HERE.glob("test_*.py"):
        text = path.read_text()
        assert len(TEST.findall(text)) == len(re.findall(r"^def test_s\d{3}_", text, re.MULTILINE))

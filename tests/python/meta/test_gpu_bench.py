"""benches/gpu without a card: its code runs over the reference; alone it says what is missing."""

import json
import os
import subprocess
import sys

import pytest

SECTIONS = [
    "card",
    "compiling",
    "parity",
    "graphs",
    "copies",
    "decodes",
    "prefills",
    "tokens",
    "far",
    "sanitizers",
    "others",
]


@pytest.fixture
def bench(root, tmp_path):
    def run(*words, command=None):
        paths = os.pathsep.join([str(root / "python"), str(root / "tests" / "python")])
        environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"PYTHON": sys.executable, "OCTAVO_COMMIT": "abc"}
        command = command or [sys.executable, root / "benches" / "gpu" / "run.py"]
        command = [*command, "--out", tmp_path, *words]
        told = subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True, timeout=200
        )
        found = tmp_path / "gpu.json"
        return told, json.loads(found.read_text("utf-8")) if found.exists() else None

    return run


def test_a_dry_run_does_everything_that_needs_no_card(bench, root):
    told, found = bench("--tiny", "--backend", "support.stand_in:backend")
    assert told.returncode == 0, told.stderr
    assert list(found["sections"]) == SECTIONS
    assert {one["status"] for one in found["sections"].values()} == {"done"}
    assert found["commit"] == "abc"
    assert found["date"].startswith("20")
    rows = {name: one["rows"] for name, one in found["sections"].items()}
    assert len(rows["parity"]) == 6
    aims = {
        row["work"].split()[0]: row["aim"] for each in rows.values() for row in each if row["aim"]
    }
    assert aims == {"gather": 0.9, "decode": 0.85}
    lines = told.stdout.splitlines()
    assert lines[0].split() == ["work", "figure", "beside", "ratio", "aim"]
    assert [line for line in lines if line.startswith("[")][-1].startswith(
        "[beside other libraries: done"
    )
    files = {path.stem for path in (root / "benches" / "gpu").glob("*.py")}
    assert set(SECTIONS) < files


def test_a_section_that_fails_is_told_and_the_others_run(bench):
    words = ("--only", "parity", "far", "copies")
    told, found = bench("--tiny", "--backend", "support.stand_in:broken", *words)
    assert told.returncode == 1
    status = {name: one["status"] for name, one in found["sections"].items()}
    assert status == {
        "card": "done",
        "parity": "failed with exit status 1",
        "copies": "done",
        "far": "failed with exit status 1",
    }
    assert "MismatchError: Case(pair=" in told.stderr
    assert "decode: 1 of" in told.stderr
    assert told.stderr.endswith("benches/gpu: parity, far did not do their work\n")
    assert "[parity with the reference in float64: failed with exit status 1" in told.stdout


def test_a_section_that_takes_too_long_is_stopped_and_told(bench):
    words = ("--only", "decodes", "copies", "--limit", "4")
    told, found = bench("--tiny", "--backend", "support.stand_in:slow", *words)
    assert told.returncode == 1
    decodes, copies = (found["sections"][name] for name in ("decodes", "copies"))
    assert decodes["status"] == "stopped after 4 s"
    assert [row["work"] for row in decodes["rows"]] == ["a copy on the card, read and written"]
    assert copies["status"] == "done"


def test_without_a_card_it_fails_loudly(bench, root):
    told, found = bench(command=[root / "benches" / "gpu" / "run.sh"])
    assert told.returncode == 2
    assert found is None
    assert "benches/gpu: cupy is not usable: " in told.stderr
    assert told.stderr.endswith("benches/gpu: there is no card to run on, see above\n")
    assert not told.stdout


def test_a_folder_without_a_wheel_is_named(bench, root, tmp_path):
    told, _ = bench(command=[root / "benches" / "gpu" / "run.sh", "--wheels", tmp_path / "none"])
    assert told.returncode == 2
    assert "there is no wheel of octavo in" in told.stderr

"""Every mutant still applies and names a test that exists; `make mutants` builds and runs them."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "mutants"
THEOREM = FOLDER.parent / "python/theorem/test_theorem.py"
# L9 comes with events.
LAWS = {f"L{number}" for number in range(1, 14)} - {"L9"}


def load():
    spec = importlib.util.spec_from_file_location("mutants", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mutants = load()
PATCHES = sorted(FOLDER.glob("*.patch"))


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_mutant_applies_and_names_tests_that_exist(root, path):
    mutant = mutants.read(path)
    assert mutant.name.startswith(f"{mutant.law.lower()}_")
    for hunk in mutant.hunks:
        assert hunk.path.startswith("rust/core/src/")
        text = (root / hunk.path).read_text(encoding="utf-8")
        assert mutants.mutated(text, hunk) != text
    for test in mutant.red:
        if test.target == mutants.THEOREM:
            assert f"\n{test.name} = " in THEOREM.read_text("utf-8")
            continue
        where = root / ("rust/core/src" if test.target == "lib" else "tests/rust")
        name = test.name.rpartition("::")[2]
        assert any(f"fn {name}(" in file.read_text("utf-8") for file in where.rglob("*.rs"))


def test_every_law_has_a_mutant():
    assert {mutants.read(path).law for path in PATCHES} == LAWS


def test_the_theorem_finds_what_it_is_there_for():
    """Freed early, shared without a copy, published before it is computed."""
    read = [mutants.read(path) for path in PATCHES]
    found = {one.law for one in read if any(test.target == mutants.THEOREM for test in one.red)}
    assert found >= {"L3", "L4", "L7"}


def test_lines_that_are_gone_or_ambiguous_do_not_apply():
    hunk = mutants.Hunk("a.rs", "two\n", "2\n")
    assert mutants.mutated("one\ntwo\n", hunk) == "one\n2\n"
    for text in ("one\n", "two\ntwo\n"):
        with pytest.raises(mutants.BrokenError, match="does not apply"):
            mutants.mutated(text, hunk)


def test_header_is_checked(tmp_path):
    path = tmp_path / "l1_x.patch"
    diff = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    path.write_text(f"Law: L1\nBreaks: x\nRed: laws t\n{diff}", encoding="utf-8")
    assert mutants.read(path).hunks == [mutants.Hunk("x", "a\n", "b\n")]
    for wrong in ("Law: 1", "Breaks: ", "Red: t", "Why: x"):
        path.write_text(f"{wrong}\nLaw: L1\nBreaks: x\nRed: laws t\n{diff}", encoding="utf-8")
        with pytest.raises(mutants.BrokenError, match=re.escape(wrong)):
            mutants.read(path)

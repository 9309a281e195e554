"""Breaks each law on purpose, and demands that the test that guards it turns red.

    python tests/mutants/run.py [NAME …]

Every file `NAME.patch` beside this one is a slip in `rust/core/src`. Its header says which law it
breaks, how, and which tests must find it:

    Law: L7
    Breaks: a freed block waits for the oldest open step instead of the newest
    Red: laws cache::test_l7_an_unpublished_block_waits
    Red: theorem TestTheorem

A test is named by cargo's target (`lib` for the unit tests of the crate) and its own name; of the
target `theorem` by its name in `tests/python/theorem`, which runs on an extension built from the
mutant, always the same examples, without the audit: what is wrong must show in what is read,
written or said, and neither in a panic nor in a queue that stands still. The project is copied
once; each patch is applied alone, built incrementally, tested and taken back. A patch that no
longer applies or builds, a named test that is red without it, and a mutant that survives its test
are failures.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What cargo and the theorem need of the project.
NEEDED = ("Cargo.toml", "Cargo.lock", "rust", "tests/rust", "benches/rust", "pyproject.toml")
NEEDED_BY_THEOREM = ("python/octavo", "tests/python/conftest.py", "tests/python/support")
CARGO = ["cargo", "test", "--locked", "--quiet", "-p", "octavo-core"]
# Built for a short build: incremental, hardly optimised, and with every check of a debug build.
PROFILE = {
    "CARGO_INCREMENTAL": "1",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_TEST_DEBUG": "0",
    "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
    "PROPTEST_CASES": "200",
}
# The extension is built as users run it, without checks: what a mutant does wrong must show.
EXTENSION_PROFILE = {
    "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
    "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
    "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
    "PYO3_BUILD_EXTENSION_MODULE": "1",
    "PYO3_PYTHON": sys.executable,
}
THEOREM = "theorem"
FOLDER_OF_THEOREM = "tests/python/theorem"
WRONG_IN_WHAT_IS_DONE = re.compile("not the plain model's token|has NaN|is named twice")
TIMEOUT_S = 120


class BrokenError(Exception):
    """What a run demands and did not get; the message is one line."""


@dataclass(frozen=True)
class Test:
    """One test, by cargo's target, or the theorem's, and its own name."""

    target: str
    name: str

    def command(self) -> list[str]:
        """The command that runs it alone."""
        if self.target == THEOREM:
            words = "-q -x --no-header --tb=line -p no:cacheprovider --hypothesis-profile=mutants"
            name = f"{FOLDER_OF_THEOREM}/test_theorem.py::{self.name}"
            return [sys.executable, "-m", "pytest", *words.split(), name]
        kind = ["--lib"] if self.target == "lib" else ["--test", self.target]
        return [*CARGO, *kind, "--", "--exact", self.name]


@dataclass(frozen=True)
class Hunk:
    """Lines of a file, and what stands there in the mutant."""

    path: str
    old: str
    new: str


@dataclass
class Mutant:
    """A patch and what its header says."""

    name: str
    law: str = ""
    breaks: str = ""
    red: list[Test] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)


def read(path: Path) -> Mutant:
    """Reads a patch: the header, then a unified diff."""
    header, mark, diff = path.read_text(encoding="utf-8").partition("\n--- ")
    mutant = Mutant(path.stem)
    for line in header.splitlines():
        key, _, value = line.partition(": ")
        if key == "Law" and re.fullmatch(r"L\d+", value):
            mutant.law = value
        elif key == "Breaks" and value:
            mutant.breaks = value
        elif key == "Red" and value.count(" ") == 1:
            mutant.red.append(Test(*value.split()))
        else:
            raise BrokenError(f"{path.name}: '{line}' is no line of a header")
    mutant.hunks = list(read_hunks(mark.lstrip("\n") + diff))
    if not (mutant.law and mutant.breaks and mutant.red and mutant.hunks):
        raise BrokenError(f"{path.name}: Law, Breaks, Red and a diff are needed")
    return mutant


def read_hunks(diff: str) -> Iterable[Hunk]:
    """The hunks of a unified diff; line numbers do not matter."""
    for part in re.split(r"^(?=--- )", diff, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@.*@@.*\n", part, flags=re.MULTILINE)
        [path] = re.findall(r"^\+\+\+ b/(\S+)$", head, re.MULTILINE)
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            yield Hunk(path, old, "".join(line[1:] for line in lines if line[0] in " +"))


def mutated(text: str, hunk: Hunk) -> str:
    """The text with one hunk applied; what it replaces must stand there exactly once."""
    if text.count(hunk.old) != 1:
        times = text.count(hunk.old)
        raise BrokenError(f"does not apply: {hunk.path} has its lines {times} times")
    return text.replace(hunk.old, hunk.new)


def copy_tree(to: Path) -> None:
    """Makes `to` hold what is needed; files that are the same keep their time, for cargo."""
    wanted = [ROOT / name for name in (*NEEDED, *NEEDED_BY_THEOREM, FOLDER_OF_THEOREM)]
    files = [file for path in wanted for file in (path.rglob("*") if path.is_dir() else [path])]
    # What was built here is not what will be built there.
    files = [file for file in files if file.is_file() and file.suffix not in {".so", ".pyc"}]
    there = {file.relative_to(ROOT) for file in files}
    for path in there:
        source, copy = ROOT / path, to / path
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    for copy in [file for file in to.rglob("*") if file.is_file()]:
        if copy.relative_to(to) not in there:
            copy.unlink()


@dataclass
class Workshop:
    """The copy of the project in which mutants are built."""

    tree: Path
    target: Path

    def run(self, command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
        """Runs cargo or the theorem in the copy; what it says comes back."""
        own = {
            "CARGO_TARGET_DIR": str(self.target),
            "OCTAVO_THEOREM_AUDIT": "0",
            "PYTHONPATH": str(self.tree / "python"),
        }
        environment = os.environ | PROFILE | own | settings
        try:
            return subprocess.run(
                command,
                cwd=self.tree,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise BrokenError(f"still running after {TIMEOUT_S} s") from None

    def build(self, targets: Iterable[str]) -> None:
        """Builds the test targets, and the extension where the theorem is one of them."""
        kinds = {
            name: ["--lib"] if name == "lib" else ["--test", name]
            for name in targets
            if name != THEOREM
        }
        if kinds:
            words = [word for kind in kinds.values() for word in kind]
            self.check_built(self.run([*CARGO, "--no-run", *words]))
        if THEOREM in targets:
            target = self.target.with_name("extension")
            command = ["cargo", "build", "--locked", "--quiet", "-p", "octavo-py"]
            settings = EXTENSION_PROFILE | {"CARGO_TARGET_DIR": str(target)}
            self.check_built(self.run(command, **settings))
            place = self.tree / "python/octavo/_core.abi3.so"
            shutil.copyfile(target / "debug/lib_core.so", place)

    @staticmethod
    def check_built(built: subprocess.CompletedProcess[str]) -> None:
        """Raises the first error of a build that failed."""
        if built.returncode != 0:
            errors = re.findall(r"^error.*$", built.stderr, re.MULTILINE)
            raise BrokenError(f"does not build: {errors[0] if errors else 'see cargo'}")

    def is_red(self, test: Test) -> bool:
        """Runs one test of a built target; it must be there."""
        ran = self.run(test.command())
        if test.target == THEOREM:
            # pytest: 0 is all green, 1 is red, and anything else is a run that came to nothing.
            if ran.returncode not in {0, 1}:
                raise BrokenError(f"pytest could not run {test.name}")
            if ran.returncode == 1 and not WRONG_IN_WHAT_IS_DONE.search(ran.stdout):
                raise BrokenError(f"{test.name} is red for another reason")
            return ran.returncode == 1
        found = re.search(r"^test result: (\w+)\. (\d+) passed; (\d+) failed", ran.stdout, re.M)
        if found is None:
            if ran.returncode == 0:
                raise BrokenError(f"cargo ran no test of {test.target}")
            return True  # the whole program died, which no test that passes does
        if int(found.group(2)) + int(found.group(3)) != 1:
            raise BrokenError(f"there is no test {test.name} in {test.target}")
        return found.group(1) == "FAILED"

    def try_mutant(self, mutant: Mutant) -> None:
        """Applies a mutant, builds it, runs its tests and takes it back."""
        originals = {hunk.path: "" for hunk in mutant.hunks}
        for path in originals:
            originals[path] = (self.tree / path).read_text(encoding="utf-8")
        texts = dict(originals)
        for hunk in mutant.hunks:
            texts[hunk.path] = mutated(texts[hunk.path], hunk)
        try:
            self.write(texts)
            self.build(dict.fromkeys(test.target for test in mutant.red))
            for test in mutant.red:
                if not self.is_red(test):
                    raise BrokenError(f"survives {test.name}")
        finally:
            self.write(originals)

    def write(self, texts: dict[str, str]) -> None:
        """Writes files of the copy, later than anything that was built before."""
        for path, text in texts.items():
            (self.tree / path).write_text(text, encoding="utf-8", newline="\n")


def check_unmutated(shop: Workshop, mutants: list[Mutant]) -> None:
    """Without a mutant, every named test is there and green."""
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.red)
    shop.build(dict.fromkeys(test.target for test in tests))
    for test in tests:
        if shop.is_red(test):
            raise BrokenError(f"without a mutant, {test.target} {test.name} is red")


def target_folder() -> Path:
    """Where cargo builds this project."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(json.loads(told.stdout)["target_directory"])


def run(names: list[str]) -> int:
    """Tries the mutants, prints a table, and returns how many did not do as they should."""
    paths = sorted(HERE.glob("*.patch"))
    unknown = set(names) - {path.stem for path in paths}
    if unknown:
        raise BrokenError(f"there is no mutant {', '.join(sorted(unknown))}")
    mutants = [read(path) for path in paths if not names or path.stem in names]
    folder = target_folder() / "mutants"
    shop = Workshop(folder / "tree", folder / "target")
    copy_tree(shop.tree)
    start = time.monotonic()
    check_unmutated(shop, mutants)
    print(f"{len(mutants)} mutants; all their tests are green without them.\n")
    print("| mutant | law | what it breaks | outcome | s |\n| --- | --- | --- | --- | --- |")
    failures = 0
    for mutant in mutants:
        began = time.monotonic()
        try:
            shop.try_mutant(mutant)
            outcome = "red"
        except BrokenError as broken:
            failures += 1
            outcome = f"**{broken}**"
        took = time.monotonic() - began
        print(
            f"| {mutant.name} | {mutant.law} | {mutant.breaks} | {outcome} | {took:.0f} |",
            flush=True,
        )
    took = time.monotonic() - start
    print(f"\n{len(mutants) - failures} of {len(mutants)} mutants are found, in {took:.0f} s.")
    return failures


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants only")
    try:
        sys.exit(1 if run(parser.parse_args().names) else 0)
    except BrokenError as broken:
        sys.exit(str(broken))


if __name__ == "__main__":
    main()

"""What the house promises about its own files: nothing silently unused, nothing from above."""

import re
import subprocess
from pathlib import Path

import pytest

CRATES = ("core", "sim")
# What the core may bring with it, macros at build time included.
CORE_TREE = {
    "bytemuck",
    "octavo-core",
    "proc-macro2",
    "quote",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
    "xxhash-rust",
}
# Files longer than this have one noun all the same, for the reason given.
LONGEST = 500
LONG_FILES: dict[str, str] = {}


def tree(root: Path, package: str) -> set[str]:
    command = ["cargo", "tree", "--locked", "--offline", "-p", package, "-e", "normal,build"]
    shown = subprocess.run(
        [*command, "--prefix", "none", "--format", "{p}"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return {line.split()[0] for line in shown.stdout.splitlines() if line}


def test_core_depends_on_small_crates_only(root):
    assert tree(root, "octavo-core") <= CORE_TREE


def test_sim_knows_no_python(root):
    assert not {"pyo3", "numpy"} & tree(root, "octavo-sim")


@pytest.mark.parametrize("crate", CRATES)
@pytest.mark.parametrize(("kind", "folder"), [("test", "tests/rust"), ("bench", "benches/rust")])
def test_rust_files_are_named_in_a_manifest(root, crate, kind, folder):
    manifests = {
        name: (root / "rust" / name / "Cargo.toml").read_text(encoding="utf-8") for name in CRATES
    }
    paths = {
        name: set(re.findall(rf'path = "\.\./\.\./({folder}/[^"]+\.rs)"', text))
        for name, text in manifests.items()
    }
    assert all((root / path).exists() for path in paths[crate]), "named, and not there"
    there = {str(path.relative_to(root)) for path in (root / folder).glob("*.rs")}
    assert there <= set().union(*paths.values()), f"there, and in no [[{kind}]]: it never runs"


@pytest.mark.parametrize("crate", CRATES)
def test_pure_crates_forbid_unsafe_code(root, crate):
    text = (root / "rust" / crate / "src" / "lib.rs").read_text(encoding="utf-8")
    assert "#![forbid(unsafe_code)]" in text


def test_long_files_have_a_reason(root):
    files = [*(root / "rust").rglob("*.rs"), *(root / "python").rglob("*.py")]
    long = {
        str(path.relative_to(root))
        for path in files
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST
    }
    assert long == set(LONG_FILES)


def test_silenced_checks_have_a_reason(root):
    wrong = []
    for path in [*(root / "python").rglob("*.py*"), *(root / "tests" / "python").rglob("*.py")]:
        if path.suffix not in {".py", ".pyi"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"# (noqa|type: ignore|pyright: ignore)(?!.* - \w)", line):
                wrong.append(f"{path.relative_to(root)}:{number}")
    assert not wrong, "silenced without ' - reason' behind it"


def test_no_file_names_a_machine(root):
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    )
    pattern = re.compile(r"/(work|root|tmp|home)/\w")
    wrong = []
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.is_file() and path.stat().st_size < 1_000_000 and name != "LICENSE":
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [name for _ in pattern.finditer(text)]
    assert not wrong


def test_versions_agree(root):
    cargo = re.search(r'^version = "(.+)"', (root / "Cargo.toml").read_text("utf-8"), re.MULTILINE)
    python = re.search(
        r'^version = "(.+)"', (root / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert cargo.group(1) == python.group(1)

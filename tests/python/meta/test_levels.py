"""The level table of ARCHITECTURE.md, held against every path that the core's modules name."""

import re
from pathlib import Path

import pytest

# Files of declarations and re-exports: they name everything and use nothing.
FACADES = {"lib.rs", "sched/mod.rs", "sched.rs"}
FACADE_LINE = re.compile(
    r"^(#!?\[.*\]|(pub(\(\w+\))? )?(mod|use) [^{;]*(\{[^}]*\})?[^;]*;|extern crate \w+;)$"
)


def read_table(text: str) -> dict[str, int]:
    levels: dict[str, int] = {}
    for level, cell in re.findall(r"^\| (\d+) \| (.+?) \|$", text, re.MULTILINE):
        for prefix, names in re.findall(r"(\w+)::\{([^}]*)\}", cell):
            levels |= {f"{prefix}::{name.strip()}": int(level) for name in names.split(",")}
        rest = re.sub(r"\w+::\{[^}]*\}|\([^)]*\)", "", cell)
        levels |= {name.strip(" `"): int(level) for name in rest.split(",") if name.strip(" `")}
    return levels


def without_comments(text: str) -> str:
    """Rust text without comments, string literals and the module of unit tests at its end."""
    text = text.partition("\n#[cfg(test)]\nmod ")[0]
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


def expand(tree: str) -> list[str]:
    """The paths of a `use` tree, groups opened: `a::{b, c::{d}}` names a::b and a::c::d."""
    head, brace, inner = tree.partition("{")
    if not brace:
        return [tree.strip()]
    parts, depth, start = [], 0, 0
    inner = inner[: inner.rindex("}")]
    for i, char in enumerate(inner):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(inner[start:i])
            start = i + 1
    parts.append(inner[start:])
    return [head.strip() + path for part in parts if part.strip() for path in expand(part.strip())]


def paths_of(text: str) -> list[str]:
    """Every path from `crate::` or `super::` that the text names, in `use` trees and in line."""
    text = without_comments(text)
    trees = re.findall(r"\buse\s+((?:crate|super|self)\b[^;]*);", text)
    rest = re.sub(r"\buse\s+[^;]*;", "", text)
    inline = re.findall(r"(?<!\$)\b((?:crate|super)(?:::\w+)+)", rest)
    return [path for tree in trees for path in expand(re.sub(r"\s+", " ", tree))] + inline


def absolute(path: str, module: str) -> str:
    """The path from the crate's root, given the module that names it."""
    parts = path.replace(" ", "").split("::")
    here = module.split("::")
    if parts[0] == "self":
        return "::".join(here + parts[1:])
    while parts and parts[0] == "super":
        here, parts = here[:-1], parts[1:]
        if not parts or parts[0] != "super":
            return "::".join(here + parts)
    return "::".join(parts[1:])


def module_of(path: str, levels: dict[str, int]) -> str | None:
    """The module of the table that a path reaches into; None for the crate root's re-exports."""
    parts = path.split("::")
    for length in (2, 1):
        name = "::".join(parts[:length])
        if len(parts) >= length and name in levels:
            return name
    return None


def modules(root: Path) -> list[tuple[str, Path]]:
    source = root / "rust" / "core" / "src"
    found = []
    for file in sorted(source.rglob("*.rs")):
        name = str(file.relative_to(source))
        if name not in FACADES:
            found.append((name.removesuffix(".rs").removesuffix("/mod").replace("/", "::"), file))
    return found


@pytest.fixture(scope="module")
def levels(root) -> dict[str, int]:
    return read_table((root / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def test_every_module_has_a_level(root, levels):
    named = {module_of(name, levels) for name, _ in modules(root)}
    unnamed = [name for name, _ in modules(root) if module_of(name, levels) is None]
    assert not unnamed, "modules without a level in ARCHITECTURE.md"
    if named:
        assert set(levels) == named, "levels of modules that do not exist"


def test_modules_use_strictly_lower_levels(root, levels):
    wrong = []
    for name, file in modules(root):
        module = module_of(name, levels)
        if module is None:
            continue  # told by test_every_module_has_a_level
        for path in paths_of(file.read_text(encoding="utf-8")):
            target = module_of(absolute(path, name), levels)
            if target is None:
                reexport = absolute(path, name).split("::")[0]
                if reexport and not reexport.startswith("super"):
                    wrong.append(f"{name} names {path}: no module of the table")
            elif target != module and levels[target] >= levels[module]:
                wrong.append(f"{name} ({levels[module]}) uses {target} ({levels[target]})")
    assert not wrong


def test_facades_only_declare_and_reexport(root):
    source = root / "rust" / "core" / "src"
    for name in FACADES:
        if (source / name).exists():
            text = without_comments((source / name).read_text(encoding="utf-8"))
            joined = re.sub(r"\{[^}]*\}", lambda tree: re.sub(r"\s+", " ", tree.group()), text)
            for line in filter(None, map(str.strip, joined.splitlines())):
                assert FACADE_LINE.match(line), f"{name}: {line}"


def test_reader_of_paths_sees_every_form():
    text = """
    use crate::{ids::{BlockId, SequenceId}, error};
    use super::queue::Queue;
    fn f() -> crate::pool::Pool { super::rows::new() } // crate::not_this
    """
    assert [absolute(path, "sched::step") for path in paths_of(text)] == [
        "ids::BlockId",
        "ids::SequenceId",
        "error",
        "sched::queue::Queue",
        "pool::Pool",
        "sched::rows::new",
    ]


def test_reader_of_the_table_opens_groups():
    assert read_table("| 7 | draw, sched::{request, queue} (x) |\n| 0 | ids |") == {
        "draw": 7,
        "sched::request": 7,
        "sched::queue": 7,
        "ids": 0,
    }

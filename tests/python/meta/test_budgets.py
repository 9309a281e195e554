"""The budgets, the README's table and the reader of measurements agree with each other."""

import json
import re

import pytest

import table as bench
from table import Figure, Measured, MissingError

ROWS = bench.read_budgets()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.fixture
def shown(root):
    """The rows of the README's table, without its head."""
    text = bench.section((root / "README.md").read_text(encoding="utf-8")).group(1)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert cells(lines[0]) == list(bench.HEAD)
    return [cells(line) for line in lines[2:]]


def test_every_budget_is_a_row_of_the_readme_once(shown):
    expected = [bench.line(row, Measured({name: {} for name in bench.SOURCES}, {})) for row in ROWS]
    assert [row[:2] for row in shown] == [list(line.cells[:2]) for line in expected]


def test_names_of_rows_are_unique():
    names = [row["row"] for row in ROWS]
    assert len(set(names)) == len(names)


def test_every_figure_has_its_measurement(root):
    python = "".join(path.read_text("utf-8") for path in (root / "benches/python").glob("test_*"))
    rust = "".join(path.read_text("utf-8") for path in (root / "benches/rust").glob("*.rs"))
    counted = (root / "benches" / "instructions.py").read_text("utf-8")
    for figure in (figure for row in ROWS for figure in row["figures"]):
        if "python" in figure:
            test = figure["python"].partition("[")[0]
            assert f"def {test}(" in python
        elif "criterion" in figure:
            group = figure["criterion"].partition("/")[0]
            assert f'benchmark_group("{group}")' in rust
        elif "ratios" in figure:
            assert f'"{figure["ratios"]}": [' in counted
        else:
            assert int(figure["memory"]) in (100_000, 1_000_000)


@pytest.fixture
def measured(tmp_path):
    """A target folder with one result of each kind, as the tools write them."""
    criterion = tmp_path / "criterion" / "group" / "fast" / "new"
    criterion.mkdir(parents=True)
    (criterion / "benchmark.json").write_text(json.dumps({"full_id": "group/fast"}))
    # Per iteration 10, 20, 30, 40 and 50 ns.
    sample = {"iters": [1.0, 2.0, 3.0, 4.0, 5.0], "times": [10.0, 40.0, 90.0, 160.0, 250.0]}
    (criterion / "sample.json").write_text(json.dumps(sample))
    folder = tmp_path / "octavo-bench"
    folder.mkdir()

    def test(name, median, **counts):
        stats = {"median": median, "q1": median * 0.9, "q3": median * 1.1}
        return {"name": name, "stats": stats, "extra_info": counts}

    tests = [test("test_a[1]", 2.0, requests=10), test("test_a[2]", 30.0, requests=100)]
    told = {"benchmarks": tests, "skipped": {"test_b": "the trace is not here"}}
    (folder / "python.json").write_text(json.dumps(told))
    (folder / "memory.json").write_text(json.dumps({"100000": 111.5}))
    return Measured.read(tmp_path)


def value(figure, unit, measured):
    found = bench.evaluate(figure, unit, measured)
    return pytest.approx(found.median), pytest.approx(found.spread)


def test_figures_are_medians_with_half_the_distance_of_the_quartiles(measured):
    assert value({"criterion": "group/fast", "per": 10}, "ns", measured) == (3.0, 1 / 3)
    assert value({"python": "test_a[1]"}, "ms", measured) == (2_000.0, 0.1)
    assert value({"memory": "100000"}, "B", measured) == (111.5, 0.0)


def test_ratios_and_rates_are_of_medians(measured):
    assert value({"python": "test_a[2]", "over": "test_a[1]"}, "x", measured) == (15.0, 0.2)
    each = {"python": "test_a[2]", "over": "test_a[1]", "each": "requests"}
    assert value(each, "x", measured) == (1.5, 0.2)
    assert value({"python": "test_a[1]", "rate": "requests"}, "k/s", measured) == (0.005, 0.1)


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        ({"python": "test_b"}, "the trace is not here"),
        ({"criterion": "group/slow"}, "not measured: make bench"),
        ({"ratios": "pool"}, "not measured: make bench-instructions"),
    ],
)
def test_what_is_missing_says_why(measured, figure, reason):
    with pytest.raises(MissingError, match=f"^{re.escape(reason)}$"):
        bench.evaluate(figure, "s", measured)


def test_table_counts_what_keeps_its_budget(measured):
    rows = [
        {
            "row": "A",
            "work": "most",
            "unit": "s",
            "budget": [3, 30, 1],
            "figures": [{"python": "test_a[1]"}, {"python": "test_a[2]"}, {"python": "test_b"}],
        },
        {
            "row": "B",
            "work": "least",
            "unit": "B",
            "bound": "least",
            "budget": [112],
            "figures": [{"memory": "100000"}],
        },
    ]
    text = bench.render(rows, measured)
    [first, second] = [cells(line) for line in text.splitlines()[2:4]]
    assert first == ["most", "≤ 3 / 30 / 1 s", "2 / 30 / - s", "0.67 / 1.00 / -", "± 10 / 10 / - %"]
    assert second == ["least", "≥ 112 B", "112 B", "1.00", "± 0 %"]
    assert "2 of 4 figures keep their budget, 1 were not measured." in text
    assert "A: the trace is not here." in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [(8, "8"), (0.0721, "0.072"), (1.2345, "1.23"), (12.345, "12.3"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits(given, expected):
    assert bench.number(given) == expected


def test_section_is_replaced_between_its_marks(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n", encoding="utf-8")
    bench.write(path, "new\nlines")
    assert path.read_text("utf-8") == f"before\n{bench.BEGIN}\nnew\nlines\n{bench.END}\nafter\n"


def test_one_value_has_no_spread():
    assert Figure.of([2.0]) == Figure(2.0, 0.0)

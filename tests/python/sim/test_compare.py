"""`octavo compare`: the lesson about batching, and what its figures must say."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

LESSON = (
    "--preset", "lesson", "--num-requests", "200", "--request-rate", "8",
    "--input-len", "lognormal:500:0.3", "--output-len", "lognormal:120:0.9:10:500",
    "--max-num-seqs", "32", "--max-num-batched-tokens", "256",
)  # fmt: skip
BATCHINGS = ["serial", "static", "continuous", "mixed", "chunked"]


@pytest.fixture
def compared(octavo):
    """A function that compares and gives the result, and the summaries by name."""

    def compare(*words):
        code, out, _ = octavo("compare", *words, "--json", "-")
        assert code == 0
        result = json.loads(out)
        return result, {run["name"]: run["summary"] for run in result["runs"]}

    return compare


def test_lesson_has_the_traffic_and_the_machine_it_is_about(compared, octavo):
    result, _ = compared(*LESSON)
    assert result["workload"]["requests"] == 200
    config = result["runs"][0]["config"]
    # 14 GB at 2 TB/s are 7 ms; 500 tokens take 500 x 14e9 / 150e12 + 0.001 = 47.7 ms.
    assert config["weight_bytes"] / config["bandwidth"] == 0.007
    one = ("--preset", "lesson", "--num-requests", "1", "--input-len", "500", "--output-len", "1")
    _, out, _ = octavo("simulate", *one, "--json", "-")
    assert json.loads(out)["summary"]["ttft_s"]["max"] == pytest.approx(0.0477, abs=1e-4)


def test_lesson_says_what_each_batching_costs(compared):
    result, runs = compared(*LESSON)
    assert list(runs) == BATCHINGS
    assert len({run["useful_slot_steps"] for run in runs.values()}) == 1
    assert {name for name, run in runs.items() if run["padded_slot_steps"]} == {"static"}
    # One batch after the other: half of what static computes in its decodes is nobody's.
    assert runs["static"]["padded_slot_steps"] > runs["static"]["useful_slot_steps"]

    def of(metric, which):
        return {name: run[metric][which] for name, run in runs.items()}

    first, gap = of("ttft_s", "p50"), of("max_gap_s", "p99")
    assert first["serial"] > first["static"] > 10 * first["continuous"]
    # A whole prompt stalls the decodes; a chunk of at most 256 tokens holds them up for less.
    assert gap["continuous"] > gap["mixed"] > gap["chunked"] > gap["static"]
    chunk = 256 * 14e9 / 150e12 + 0.001
    assert gap["chunked"] == pytest.approx(chunk, rel=1e-9)
    rates = {name: run["request_throughput"] for name, run in runs.items()}
    assert rates["serial"] < rates["static"] < rates["continuous"]
    assert [runs[name]["verdict"] for name in BATCHINGS] == [
        "overloaded", "overloaded", "stable", "stable", "stable",
    ]  # fmt: skip
    assert {run["config"]["max_num_seqs"] for run in result["runs"]} == {1, 32}


def test_table_of_the_readme_is_what_the_command_prints(octavo):
    code, out, err = octavo("compare", *LESSON)
    assert code == 0
    assert out in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "simulated 200 requests 5 times" in err


def test_comparing_twice_gives_the_same_bytes(octavo, tmp_path):
    words = ("compare", *LESSON, "--batching", "static,mixed", "--wait-for-full")
    assert octavo(*words, "--json", "-")[1] == octavo(*words, "--json", "-")[1]
    path = tmp_path / "all.json"
    code, out, _ = octavo(*words, "--json", path, "--goodput", "ttft:500", "tpot:50")
    assert code == 0
    assert "attainment" in out
    assert [run["name"] for run in json.loads(path.read_text())["runs"]] == ["static", "mixed"]


def test_slabs_hold_few_tokens_and_blocks_on_demand_many(compared):
    """A slab for the longest request against blocks on demand, in a pool that is always short.

    The paper on vLLM measured 20.4 to 38.2 % of KV memory with tokens in engines with slabs.
    """
    words = (*LESSON, "--num-blocks", "600", "--request-rate", "inf")
    _, runs = compared(*words, "--batching", "chunked", "--reserve", "on_demand,worst_case")
    assert list(runs) == ["on_demand", "worst_case"]
    paged, slabs = runs["on_demand"], runs["worst_case"]
    assert paged["kv_token_share"] > 0.95
    assert slabs["kv_token_share"] < 0.5
    # What is not reserved is room for others; the price is that one of them may have to go.
    assert paged["request_throughput"] > 1.2 * slabs["request_throughput"]
    assert slabs["preemptions"] == 0


def test_policies_are_compared_on_equal_arrivals(compared):
    words = (*LESSON, "--request-rate", "20", "--batching", "serial")
    _, runs = compared(*words, "--policy", "fcfs,sjf")
    assert list(runs) == ["fcfs", "sjf"]
    assert runs["sjf"]["ttft_s"]["p50"] < runs["fcfs"]["ttft_s"]["p50"]

"""The simulator: the real scheduler in virtual time, metrics included, one replica."""

import subprocess
import sys

import pytest

from octavo.errors import ConfigError
from octavo.sim import plain, read_trace, simulate

TRACES = {
    "azure_conversation": ("azure_conv_2023.csv", {}),
    "azure_code": ("azure_code_2023.csv", {}),
    "mooncake_conversation_512": ("mooncake_conversation.jsonl", {"block_size": 512}),
    "mooncake_conversation_16": ("mooncake_conversation.jsonl", {"block_size": 16}),
}


def run(benchmark, workload, rounds, **settings):
    """Times the run and its report, and says what it did."""
    try:
        simulate(workload.truncate(1), **settings)
    except ConfigError as refused:
        pytest.skip(str(refused))
    reports = []

    def simulated():
        result = simulate(workload, **settings)
        reports.append(result.json())
        return result

    summary = benchmark.pedantic(simulated, rounds=rounds, warmup_rounds=1).summary
    assert summary["completed"] == len(workload)
    assert len(set(reports)) == 1, "the same bytes each time"
    answers = round(summary["output_token_throughput"] * summary["makespan_s"])
    benchmark.extra_info |= {"requests": len(workload), "output_tokens": answers}
    benchmark.extra_info["passes"] = summary["passes"]


@pytest.mark.parametrize("rows", [32, 256])
def test_saturated(benchmark, quick, rows):
    """Everybody waits at 0: prompts of 1,000, answers of 300."""
    workload = plain(rows * (20 if quick else 60))
    run(benchmark, workload, 3 if quick else 5, max_num_seqs=rows)


@pytest.mark.parametrize("name", TRACES)
def test_trace(benchmark, quick, trace_path, name):
    file, settings = TRACES[name]
    run(benchmark, read_trace(trace_path(file)).workload(), 3 if quick else 7, **settings)


@pytest.mark.parametrize("requests", [10_000, 1_000_000])
def test_linear(benchmark, quick, requests):
    """Short requests at a rate that the machine keeps up with, so that the queue stays short."""
    count = min(requests, 100_000) if quick else requests
    workload = plain(count, request_rate=40.0, input_len=100, output_len=10)
    run(benchmark, workload, 5 if count == 10_000 else 1)


def test_shell_to_table(benchmark, quick):
    """1,000 requests, from starting the command to its table."""
    command = [sys.executable, "-m", "octavo.cli", "simulate", "--request-rate", "4"]
    words = ["--num-requests", "1000", "--input-len", "1000", "--output-len", "300"]

    def started():
        shown = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
        assert "1,000 of 1,000 completed" in shown.stdout

    benchmark.pedantic(started, rounds=5 if quick else 15, warmup_rounds=1)

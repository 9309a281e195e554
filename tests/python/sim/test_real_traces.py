"""The published traces, whole: every request and every token must come out."""

import pytest

from octavo.sim import read_trace, simulate

WHOLE = [
    ("azure_conv_2023.csv", 19_366, 4_088_665),
    ("azure_code_2023.csv", 8_819, 245_896),
    ("mooncake_conversation.jsonl", 12_031, 4_122_048),
]


@pytest.mark.parametrize(("name", "requests", "output_tokens"), WHOLE)
def test_real_traffic_is_served_whole(real_trace, name, requests, output_tokens):
    trace = read_trace(real_trace(name))
    assert (len(trace), trace.dropped, sum(trace.output_tokens)) == (requests, 0, output_tokens)
    run = simulate(trace.workload())
    summary = run.summary
    assert (summary["completed"], summary["rejected"]) == (requests, 0)
    emitted = sum(int(line.split(",")[5]) for line in run.csv().splitlines()[1:])
    assert emitted == output_tokens
    assert summary["itl_s"]["n"] == output_tokens - requests


def test_two_runs_and_the_replay_of_a_real_trace_give_the_same_bytes(real_trace, tmp_path):
    workload = read_trace(real_trace("azure_code_2023.csv")).workload()
    exported = tmp_path / "exported.csv"
    exported.write_text(workload.trace_csv(), encoding="utf-8")
    reports = {simulate(workload).json() for _ in range(2)}
    assert reports == {simulate(read_trace(exported).workload()).json()}


def test_mooncake_prompts_find_what_their_ids_share(real_trace):
    workload = read_trace(real_trace("mooncake_conversation.jsonl")).workload()
    summary = simulate(workload.truncate(1_000)).summary
    assert summary["prefix_hit_tokens"] > 0
    assert summary["prefix_query_tokens"] == sum(
        int(line.split(",")[1]) for line in workload.truncate(1_000).trace_csv().splitlines()[1:]
    )


def test_azure_hour_is_an_hour(real_trace):
    arrivals = read_trace(real_trace("azure_conv_2023.csv")).arrival_s
    assert arrivals[0] == 0.0
    # 18:15:46.6805900 to 19:14:08.4025270
    assert arrivals[-1] == 3501.721937

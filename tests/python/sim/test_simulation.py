import csv
import io
import json
import signal
import threading

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.sim import festival, plain, read_trace, simulate
from octavo.sim.simulation import default_settings

TINY = {"num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 64}

# One request in three is longer than the others; prompts share ids.
TRACE = "arrival_s,prompt_tokens,output_tokens,hash_block_tokens,hash_ids\n" + "".join(
    f"{0.037 * i!r},{40 + 30 * (i % 3)},{1 + 7 * i % 23},16,{i % 4} {9 + i % 2}\n"
    for i in range(60)
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "shared.csv"
    path.write_text(TRACE, encoding="utf-8")
    return read_trace(path).workload()


def rows_of(run):
    return list(csv.DictReader(io.StringIO(run.csv())))


def test_two_runs_give_the_same_bytes(shared):
    one, two = (simulate(shared, **TINY) for _ in range(2))
    assert one.json() == two.json()
    assert one.csv() == two.csv()


@pytest.mark.parametrize("make", [lambda: festival(3).truncate(300), lambda: plain(50, seed=1)])
def test_seed_decides_the_bytes(make):
    assert simulate(make(), **TINY).json() == simulate(make(), **TINY).json()


@pytest.mark.parametrize("kind", ["hashed", "prefixed", "plain"])
def test_run_equals_the_replay_of_its_own_exported_trace(kind, shared, tmp_path):
    workload = {
        "hashed": shared,
        "prefixed": festival(1).truncate(200).scale_time(0.1),
        "plain": plain(40, request_rate=3.7, input_len=50, output_len=9, seed=5),
    }[kind]
    settings = {**TINY, "num_blocks": 256}
    run = simulate(workload, **settings)
    path = tmp_path / "exported.csv"
    path.write_text(workload.trace_csv(), encoding="utf-8", newline="")
    again = read_trace(path).workload()
    assert again.hash == workload.hash
    assert again.trace_csv() == workload.trace_csv()
    replay = simulate(again, **settings)
    assert replay.json() == run.json()
    assert replay.csv() == run.csv()
    if kind != "plain":
        assert run.summary["prefix_hit_tokens"] > 0


def test_report_says_what_ran(shared):
    run = simulate(shared, **TINY, ttft_s=0.5)
    report = json.loads(run.json())
    assert list(report) == ["config", "workload", "summary"]
    assert report["workload"] == {"requests": 60, "hash": shared.hash}
    config = report["config"]
    assert {name: config[name] for name in TINY} == TINY
    assert (config["ttft_s"], config["tpot_s"]) == (0.5, None)
    assert config["max_model_len"] == 100 + 23
    assert set(default_settings()) | {"max_model_len"} == set(config)


@pytest.mark.parametrize("num_blocks", [64, 12])
def test_every_figure_follows_from_the_token_times(shared, num_blocks):
    run = simulate(shared, **(TINY | {"num_blocks": num_blocks}), ttft_s=0.02, tpot_s=0.01102)
    rows, summary = rows_of(run), run.summary
    # In the small pool, sequences are preempted: their tokens come in several runs of passes.
    assert (summary["preemptions"] > 0) == (num_blocks == 12)
    assert [int(row["index"]) for row in rows] == list(range(60))
    assert {row["status"] for row in rows} == {"completed"}
    arrivals = [float(row["arrival_s"]) for row in rows]
    times = [np.array(run.token_times(i)) for i in range(60)]
    assert [len(t) for t in times] == [int(row["output_tokens"]) for row in rows]
    assert [float(row["first_token_s"]) for row in rows] == [t[0] for t in times]
    assert [float(row["last_token_s"]) for row in rows] == [t[-1] for t in times]
    assert set(np.concatenate(times)) <= set(run.pass_ends())

    long = [t for t in times if len(t) > 1]
    expected = {
        "ttft_s": [t[0] - a for t, a in zip(times, arrivals, strict=True)],
        "e2e_s": [t[-1] - a for t, a in zip(times, arrivals, strict=True)],
        "tpot_s": [(t[-1] - t[0]) / (len(t) - 1) for t in long],
        "itl_s": np.concatenate([np.diff(t) for t in long]),
        "max_gap_s": [np.diff(t).max() for t in long],
    }
    for name, values in expected.items():
        figures = summary[name]
        for percent in (50, 90, 99):
            assert figures[f"p{percent}"] == np.percentile(values, percent), (name, percent)
        assert (figures["min"], figures["max"]) == (np.min(values), np.max(values))
        assert figures["mean"] == pytest.approx(np.mean(values), rel=1e-12)
        assert figures["n"] == len(values)

    makespan = max(t[-1] for t in times) - min(arrivals)
    assert summary["makespan_s"] == makespan
    assert summary["output_token_throughput"] == sum(map(len, times)) / makespan
    assert summary["passes"] == len(run.pass_ends())
    good = sum(
        t[0] - a <= 0.02 and (len(t) < 2 or (t[-1] - t[0]) / (len(t) - 1) <= 0.01102)
        for t, a in zip(times, arrivals, strict=True)
    )
    assert 0 < good < 60
    assert summary["goodput"] == good / makespan
    assert summary["attainment"] == good / 60
    assert sum(summary["ttft_parts_s"].values()) == summary["ttft_s"]["mean"]


def test_tokens_preempted_and_found_show_in_the_csv(shared):
    # 12 blocks hold little more than one request: preemptions are certain.
    run = simulate(shared, num_blocks=12, max_num_seqs=4, max_num_batched_tokens=64)
    rows, summary = rows_of(run), run.summary
    assert summary["preemptions"] == sum(int(row["preemptions"]) for row in rows) > 0
    assert summary["prefix_hit_tokens"] == sum(int(row["hit_tokens"]) for row in rows) > 0
    assert summary["prefix_query_tokens"] == sum(int(row["prompt_tokens"]) for row in rows)
    assert summary["recomputed_tokens"] > 0
    assert summary["completed"] == 60


def test_no_prefix_caching_finds_nothing(shared):
    summary = simulate(shared, **TINY, prefix_caching=False).summary
    assert (summary["prefix_hit_tokens"], summary["prefix_query_tokens"]) == (0, 0)


def test_rows_that_share_nothing_find_nothing():
    summary = simulate(plain(30, input_len=64, output_len=4), **TINY).summary
    assert summary["prefix_hit_tokens"] == 0
    assert summary["prefix_query_tokens"] == 30 * 64


def test_rejected_requests_are_counted_and_have_no_times():
    run = simulate(plain(3, input_len=65, output_len=2), num_blocks=4)
    assert run.summary["rejected"] == 3
    assert {(row["status"], row["first_token_s"]) for row in rows_of(run)} == {("rejected", "")}
    assert run.summary["ttft_s"] == {
        "mean": None, "p50": None, "p90": None, "p99": None, "min": None, "max": None, "n": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"block_size": 257}, "block_size", 257),
        ({"num_blocks": 0}, "num_blocks", 0),
        ({"num_blocks": 1 << 80}, "num_blocks", 1 << 80),
        ({"max_num_seqs": "many"}, "max_num_seqs", "many"),
        ({"watermark": 1.0}, "watermark", 1.0),
        ({"batching": "dynamic"}, "batching", "dynamic"),
        ({"policy": "edf"}, "policy", "edf"),
        ({"speed": 3}, "option", "speed"),
    ],
)
def test_settings_are_refused_with_field_value_and_range(settings, field, value):
    with pytest.raises(ConfigError) as caught:
        simulate(plain(1), **settings)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert caught.value.range


def test_pool_without_room_is_refused():
    with pytest.raises(ConfigError, match="memory"):
        simulate(plain(1), memory=20e9)


def test_observer_is_told_and_can_stop_the_run():
    told = []
    simulate(plain(2, input_len=8, output_len=5_000), observer=lambda *news: told.append(news))
    assert [passes for _, passes, _, _ in told] == [1024, 2048, 3072, 4096]
    assert {(ended, requests) for _, _, ended, requests in told} == {(0, 2)}

    def stop(*_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        simulate(plain(2, input_len=8, output_len=5_000), observer=stop)


@pytest.mark.usefixtures("listening")
def test_ctrl_c_reaches_a_run_without_an_observer():
    # Some 10^9 passes: without the interruption this test does not end.
    endless = plain(50_000, input_len=1, output_len=20_000)
    alarm = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        simulate(endless, max_num_seqs=1)
    alarm.join()


def test_unknown_request_has_no_token_times():
    run = simulate(plain(1, input_len=8, output_len=2))
    assert len(run.token_times(0)) == 2
    with pytest.raises(IndexError):
        run.token_times(1)

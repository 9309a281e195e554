"""Made traffic: open and closed arrivals, drawn lengths, and the verdict on them."""

import math

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.sim import plain, simulate


def columns(workload):
    rows = workload.trace_csv().splitlines()[1:]
    return np.array([[float(cell) for cell in row.split(",")] for row in rows]).T


def test_arrivals_can_be_a_clock_or_bursts():
    arrivals = columns(plain(101, request_rate=4.0, burstiness=math.inf))[0]
    assert np.array_equal(arrivals, np.arange(101) / 4)
    variation = {}
    for burstiness in (0.3, 1.0, 4.0):
        made = plain(20_000, request_rate=4.0, burstiness=burstiness, seed=1)
        distances = np.diff(columns(made)[0])
        assert distances.mean() == pytest.approx(0.25, rel=0.05)
        variation[burstiness] = distances.std() / distances.mean()
    # The deviation of a gamma distribution of shape b and mean 1 is 1 / sqrt(b).
    expected = {burstiness: burstiness**-0.5 for burstiness in variation}
    assert variation == pytest.approx(expected, rel=0.06)


def test_lengths_are_drawn_and_a_stream_of_their_own():
    made = plain(5_000, request_rate=2.0, input_len="uniform:100:900", output_len=7, seed=3)
    arrivals, prompts, outputs = columns(made)
    assert (prompts.min(), prompts.max(), set(outputs)) == (100, 900, {7})
    assert prompts.mean() == pytest.approx(500, abs=4 * 231 / math.sqrt(5_000))
    other = plain(5_000, request_rate=2.0, output_len="lognormal:120:0.9:10:500", seed=3)
    assert np.array_equal(columns(other)[0], arrivals)
    assert {10, 500} <= set(columns(other)[2])


def test_seed_decides_every_byte():
    def made(seed):
        lengths = {"input_len": "lognormal:50:1", "output_len": "uniform:1:9"}
        return plain(50, request_rate=2.0, burstiness=0.4, **lengths, seed=seed)

    assert made(1).trace_csv() == made(1).trace_csv()
    assert made(1).hash != made(2).hash


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"burstiness": -1.0}, "burstiness"),
        ({"burstiness": math.nan}, "burstiness"),
        ({"concurrency": 0}, "concurrency"),
        ({"input_len": "uniform:9:3"}, "input_len"),
        ({"output_len": "lognormal:3"}, "output_len"),
        ({"output_len": 0}, "output_len"),
    ],
)
def test_impossible_traffic_is_refused_by_name(arguments, field):
    with pytest.raises(ConfigError) as caught:
        plain(3, **arguments)
    assert caught.value.field == field


def test_closed_loop_keeps_its_users_busy_and_has_no_verdict():
    made = plain(400, concurrency=8, input_len="uniform:20:200", output_len="uniform:1:40")
    assert made.concurrency == 8
    run = simulate(made)
    assert (run.summary["completed"], run.summary["verdict"]) == (400, None)
    rows = [line.split(",") for line in run.csv().splitlines()[1:]]
    arrivals = np.array([float(row[1]) for row in rows])
    lasts = np.array([float(row[3]) for row in rows])
    # Behind the first eight, each arrives with the last token of another.
    assert set(arrivals[8:]) <= set(lasts)
    assert np.count_nonzero(arrivals == 0) == 8
    in_flight = [np.count_nonzero((arrivals <= t) & (lasts > t)) for t in arrivals]
    assert max(in_flight) == 8
    assert run.json() == simulate(made).json()


@pytest.mark.parametrize(("load", "verdict"), [(0.6, "stable"), (1.5, "overloaded")])
def test_verdict_follows_the_load_of_one_server(load, verdict):
    alone = simulate(plain(1, input_len=100, output_len=20)).summary["e2e_s"]["max"]
    made = plain(2_000, request_rate=load / alone, input_len=100, output_len=20, seed=2)
    assert simulate(made, batching="serial").summary["verdict"] == verdict


def test_steady_window_leaves_the_ends_out():
    run = simulate(plain(100, input_len=100, output_len="uniform:1:100"), max_num_seqs=16)
    steady = run.summary["steady"]
    rows = [line.split(",") for line in run.csv().splitlines()[1:]]
    lasts = np.sort([float(row[3]) for row in rows])
    assert (steady["from_s"], steady["to_s"]) == (lasts[9], lasts[89])
    seconds = lasts[89] - lasts[9]
    inside = np.count_nonzero((lasts > lasts[9]) & (lasts <= lasts[89]))
    assert steady["request_throughput"] == inside / seconds
    times = np.concatenate([run.token_times(i) for i in range(100)])
    tokens = np.count_nonzero((times > lasts[9]) & (times <= lasts[89]))
    assert steady["output_token_throughput"] == tokens / seconds
    assert simulate(plain(9, input_len=10, output_len=2)).summary["steady"] is None

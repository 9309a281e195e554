"""Scenarios about what a simulator tells: times of tokens, their parts, and the shape of steps."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from octavo.sim import read_trace, simulate

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
# A pass takes 10 s whatever is in it: the model weighs nothing and computes at once.
STEP = 10.0
FIXED = {
    "overhead": STEP,
    "weight_bytes": 1e-9,
    "kv_bytes_per_token": 1e-9,
    "flop_per_token": 1e-9,
    "num_blocks": 64,
    "max_num_batched_tokens": 8,
    "max_num_seqs": 4,
}


def simulated(tmp_path: Any, trace: str, **settings: Any) -> Any:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + trace, encoding="utf-8")
    return simulate(read_trace(path).workload(), **(FIXED | settings))


def column(run: Any, name: str) -> list[float]:
    return [float(row[name]) for row in csv.DictReader(io.StringIO(run.csv()))]


def test_s149_the_first_token_comes_after_the_wait_and_the_steps_of_the_prompt(
    tmp_path: Any,
) -> None:
    """One instance with a fixed step of 10: a prompt of one step, and one of three.

    TTFT is the wait and the steps until the first token, with no formula of another deployment.
    """
    one = simulated(tmp_path, "3,8,1\n")
    assert column(one, "first_token_s") == pytest.approx([3 + STEP])
    # The second arrives in the middle of the first one's only step, and has three of its own.
    two = simulated(tmp_path, "0,8,1\n4,24,1\n")
    assert column(two, "first_token_s") == pytest.approx([STEP, STEP + 3 * STEP])
    assert two.summary["ttft_s"]["max"] == pytest.approx(6 + 3 * STEP)


def test_s150_the_parts_of_the_time_to_the_first_token_add_up_to_it(tmp_path: Any) -> None:
    """Two waits of 3 and 5 before steps of 10, with one row.

    Queue and prefill are the parts, nothing is counted twice, and decode time is in none of them.
    """
    run = simulated(tmp_path, "0,8,1\n7,8,1\n15,8,3\n", max_num_seqs=1)
    assert column(run, "first_token_s") == pytest.approx([10, 20, 30])
    parts = run.summary["ttft_parts_s"]
    assert parts["queue"] == pytest.approx((0 + 3 + 5) / 3)
    assert parts["prefill"] == pytest.approx(STEP)
    assert (parts["stall"], parts["transfer"]) == (0, 0)
    assert sum(parts.values()) == pytest.approx(run.summary["ttft_s"]["mean"])
    assert column(run, "last_token_s") == pytest.approx([10, 20, 50])


@pytest.mark.parametrize(
    ("batching", "first_tokens", "last_tokens"),
    [
        # Prompts beside the decodes: the second prompt costs the first request no step.
        ("mixed", [10, 20], [40, 50]),
        # A prompt alone goes first: the first request's second token comes one step later.
        ("continuous", [10, 20], [50, 50]),
        # Nobody joins a batch: the second starts when the first is done.
        ("static", [10, 50], [40, 80]),
    ],
)
def test_s158_steps_have_the_shape_of_the_engine_that_is_asked_for(
    tmp_path: Any, batching: str, first_tokens: list[float], last_tokens: list[float]
) -> None:
    """The same trace under another policy of batching: steps are composed as that engine does."""
    run = simulated(tmp_path, "0,8,4\n1,8,4\n", batching=batching, max_num_batched_tokens=32)
    assert column(run, "first_token_s") == pytest.approx(first_tokens)
    assert column(run, "last_token_s") == pytest.approx(last_tokens)

"""Scenarios about cost: what must not grow with the queue, the prompt or the pool.

Times are the processor's, and the best of several tries, so that a busy machine does not decide.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import octavo

if TYPE_CHECKING:
    from collections.abc import Callable


def _best_time(work: Callable[[], object], tries: int = 7) -> float:
    times = []
    for _ in range(tries):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _scheduler_with_queue(
    num_waiting: int, num_not_ready: int = 0, **options: Any
) -> octavo.Scheduler:
    scheduler = octavo.Scheduler(4_096, max_num_seqs=8, max_model_len=1_024, **options)
    prompts = [[index % 1_000, 1, 2] for index in range(8 + num_waiting)]
    # Nobody preempts: who runs is as urgent as any.
    priorities = [0] * 8 + [index % 7 for index in range(num_waiting)]
    scheduler.add_many(prompts, max_tokens=500, priority=priorities)
    scheduler.add_many([[1]] * num_not_ready, max_tokens=500, ready=False)
    plan = scheduler.step(0.0)
    assert plan is not None
    scheduler.commit(plan, [0] * len(plan.sample))
    return scheduler


def _steps(scheduler: octavo.Scheduler) -> Callable[[], None]:
    clock = iter(range(1, 10_000))

    def run() -> None:
        for _ in range(20):
            plan = scheduler.step(float(next(clock)))
            assert plan is not None
            assert len(plan.seqs) == 8
            scheduler.commit(plan, [0] * 8)

    run()
    return run


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_s166_a_step_costs_the_same_however_long_the_queue_is(policy: str) -> None:
    """8 run while 10^2 or 10^5 wait: the time of step and commit stays within a factor of 2."""
    sizes = (100, 100_000)
    short, long = (_steps(_scheduler_with_queue(size, policy=policy)) for size in sizes)
    assert _best_time(long, 15) <= 2 * _best_time(short, 15)


def test_s169_requests_that_are_not_ready_cost_a_step_nothing() -> None:
    """1,000 wait for something outside, or 100,000: the time of a step is the same."""
    few, many = (_steps(_scheduler_with_queue(0, size)) for size in (1_000, 100_000))
    assert _best_time(many, 15) <= 2 * _best_time(few, 15)


def test_s167_aborting_half_of_a_long_queue_costs_a_little_each() -> None:
    """Half of 10^4 waiting requests are aborted and taken out: O(k log n), no scans.

    Ten times the queue and the aborts may take ten times as long and a logarithm, not a hundred.
    """

    def abort_half(num_waiting: int) -> float:
        scheduler = octavo.Scheduler(16, max_num_seqs=1, max_model_len=1_024)
        requests = [scheduler.add([1], max_tokens=1) for _ in range(num_waiting)]
        start = time.process_time()
        for request in requests[::2]:
            scheduler.abort(request)
        plan = scheduler.step(0.0)
        spent = time.process_time() - start
        assert plan is not None
        assert len(plan.ended) == num_waiting // 2
        assert scheduler.stats().waiting == num_waiting // 2 - 1
        return spent

    small = min(abort_half(1_000) for _ in range(5))
    large = min(abort_half(10_000) for _ in range(5))
    assert large <= 25 * small


def test_s170_a_thousand_blocks_are_matched_and_freed_in_one_call_each() -> None:
    """One `open` claims the hit, one `close` lets it go, and both grow with the blocks only."""

    def match_and_free(num_blocks: int) -> float:
        cache = octavo.KVCache(2_000, 16)
        tokens = list(range(16 * num_blocks))
        seq = cache.open(tokens)
        cache.reserve(seq, len(tokens))
        cache.advance(seq, tokens)
        cache.close(seq)

        def once() -> None:
            seq = cache.open([*tokens, 0])
            assert cache.num_computed(seq) == len(tokens)
            cache.close(seq)

        return _best_time(once)

    assert match_and_free(1_000) <= 25 * match_and_free(100)


def test_s172_a_turn_costs_its_new_tokens_and_not_the_conversation() -> None:
    """16 tokens are added to a conversation of 600 or of 60,000: within a factor of 4.

    The sequence keeps its table, so nothing is walked again from the root.
    """

    def turn(length: int) -> float:
        cache = octavo.KVCache(8_192, 16)
        seq = cache.open()
        cache.reserve(seq, length)
        cache.advance(seq, list(range(length)))

        def once() -> None:
            grown = cache.num_computed(seq)
            cache.reserve(seq, grown + 16)
            cache.advance(seq, list(range(16)))

        return _best_time(once, 200)

    assert turn(60_000) <= 4 * turn(600)

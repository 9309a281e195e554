"""Scenarios about numbers that told something else than what happened."""

from __future__ import annotations

from collections import Counter

import pytest

from support.drive import Engine
from support.toy_model import plain_output
from support.views import as_list


@pytest.mark.parametrize("tries", [1, 5])
def test_s146_an_admission_counts_once_however_often_it_was_tried(tries: int) -> None:
    """A request with 4 of 8 tokens cached waits for blocks through several steps.

    Queries are 8 and hits 4, whatever the number of tries.
    """
    engine = Engine(5, 4)
    engine.add(range(4), max_tokens=0)
    engine.run()
    engine.add(range(50, 62), max_tokens=tries)
    engine.step()
    before = engine.scheduler.stats()
    late = engine.add([*range(4), 7, 8, 9, 10], max_tokens=1)
    waited = 0
    for plan in engine.steps():
        waited += late not in plan["seqs"]
    after = engine.scheduler.stats()
    assert waited == tries - 1
    assert after.prefix_queries - before.prefix_queries == 8
    assert after.prefix_hits - before.prefix_hits == 4
    assert (after.resumed_queries, after.resumed_hits) == (0, 0)
    assert engine.outputs[late] == plain_output([*range(4), 7, 8, 9, 10], 1)


def test_s147_a_look_up_after_a_preemption_has_counters_of_its_own() -> None:
    """A 16-token request of unique tokens is preempted once and finds its own blocks again.

    The hit rate of new requests stays 0; what was found again is reported apart.
    """
    engine = Engine(7, 4)
    first = engine.add(range(100, 111), max_tokens=4)
    second = engine.add(range(16), max_tokens=2)
    engine.run()
    stats = engine.scheduler.stats()
    assert stats.preemptions == 1
    assert (stats.prefix_queries, stats.prefix_hits) == (11 + 16, 0)
    assert stats.resumed_queries == 17
    assert stats.resumed_hits > 0
    assert engine.outputs[first] == plain_output(range(100, 111), 4)
    assert engine.outputs[second] == plain_output(range(16), 2)


def test_s147_recomputed_tokens_are_what_was_computed_twice() -> None:
    """Tokens that a resumed request finds in the cache are not recomputed, and not counted so.

    The sum of all planned tokens is what each request needed once, plus the recomputed ones.
    """
    for caching in (True, False):
        engine = Engine(7, 4, prefix_caching=caching)
        engine.add(range(100, 111), max_tokens=4)
        engine.add(range(16), max_tokens=2)
        engine.run()
        stats = engine.scheduler.stats()
        needed = (11 + 4 - 1) + (16 + 2 - 1)
        assert stats.scheduled_tokens == needed + stats.recomputed_tokens
        assert stats.recomputed_tokens + stats.resumed_hits == 16


@pytest.mark.parametrize("budget", [4, 6])
def test_s147_recomputed_tokens_add_up_over_many_preemptions(budget: int) -> None:
    """A crowd is preempted again and again, also in the middle of computing its tokens anew.

    Each token counts as new the first time that its request ever has it computed, then never.
    """
    engine = Engine(10, 2, max_num_batched_tokens=budget, prefix_caching=False)
    needed = 0
    for index in range(12):
        length, max_tokens = 1 + index * 5 % 7, 3 + index * 3 % 8
        engine.add(range(100 * index, 100 * index + length), max_tokens)
        needed += length + max_tokens - 1
    victims = Counter[int]()
    engine.run(each=lambda plan: victims.update(plan["preempted"]))
    assert max(victims.values()) >= 2
    stats = engine.scheduler.stats()
    assert stats.finished == 12
    assert stats.scheduled_tokens == needed + stats.recomputed_tokens


@pytest.mark.parametrize("budget", [4, 5, 100])
def test_s155_the_first_token_is_reported_with_the_chunk_that_completes_the_prompt(
    budget: int,
) -> None:
    """A prompt of several chunks: no outcome names the request before its first real token."""
    engine = Engine(8, 4, max_num_batched_tokens=budget)
    seq = engine.add(range(10), max_tokens=2)
    num_chunks = -(-10 // budget)
    for chunk in range(num_chunks):
        plan = engine.begin()
        assert len(plan.sample) == int(chunk == num_chunks - 1)
        outcome = engine.end(plan)
        assert len(as_list(outcome.seqs)) == int(chunk == num_chunks - 1)
    assert as_list(outcome.seqs) == [seq]
    assert engine.outputs[seq] == plain_output(range(10), 1)
    engine.run()


def test_s159_hits_are_counted_in_tokens_of_the_same_look_ups_as_queries() -> None:
    """Numerator and denominator come from one record: hits never pass queries, retries included.

    `match` is a look and counts for neither; requests that take no hits count for neither.
    """
    engine = Engine(6, 4, max_num_seqs=2)
    for index in range(9):
        engine.add([1, 2, 3, 4, 5, 6, 7, index], max_tokens=2, use_cache=index != 4)
    for _ in engine.steps():
        engine.scheduler.match([1, 2, 3, 4, 5])
        stats = engine.scheduler.stats()
        assert 0 <= stats.prefix_hits < stats.prefix_queries
        assert 0 <= stats.resumed_hits <= stats.resumed_queries
    assert stats.prefix_queries == 8 * 8
    assert stats.prefix_hits > 0

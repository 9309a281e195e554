"""Scenarios about allocation: leaks, double frees, demand and supply counted in different units."""

from __future__ import annotations

import resource
from typing import Any

import pytest

import octavo
from octavo import OutOfBlocks, Reason
from support.drive import Engine, fill, fill_up, remember
from support.toy_model import plain_output
from support.views import CACHE_STATS, SCHEDULER_STATS, as_list, stats_view


@pytest.mark.parametrize("length", [1, 2, 3])
def test_s001_prompt_shorter_than_a_block_leaves_nothing_behind(length: int) -> None:
    """A prompt that fills no block publishes nothing, so its release cannot hang on a reader.

    L1: with pool 4 x 4 all four blocks are blank again at idle.
    """
    engine = Engine(4, 4)
    engine.add(range(length), max_tokens=1)
    engine.run()
    engine.assert_idle()
    assert engine.scheduler.stats().blank == 4

    cache = octavo.KVCache(4, 4)
    cache.close(fill(cache, range(length)))
    assert cache.stats().blank == 4


def test_s002_usage_is_zero_at_idle_however_often_the_pool_was_filled() -> None:
    """Eight prompts of four tokens fill the pool with cached blocks; a ninth is still admitted.

    L1: usage is derived from the states of the blocks, so the four add up after every step.
    """
    engine = Engine(8, 4)
    for first in range(0, 80, 8):
        engine.add(range(first, first + 4), max_tokens=1)
        for _ in engine.steps():
            stats = engine.scheduler.stats()
            assert stats.blank + stats.cached + stats.held + stats.fenced == 8
            assert stats.held <= 1
        engine.assert_idle()
    assert engine.scheduler.stats().finished == 10
    assert engine.scheduler.stats().cached == 8


def _bring_to(when: str, engine: Engine, victim: int) -> Any:
    """Steps until the victim is in the named state. Returns the plan that is out, if one is."""
    if when in ("partial", "decoding"):
        for _ in range(1 if when == "partial" else 3):
            engine.step()
    elif when == "out":
        engine.step()
        plan = engine.begin()
        assert victim in as_list(plan.seqs)
        return plan
    elif when == "preempted":
        while victim not in engine.step()["preempted"]:
            assert victim not in engine.reasons
        assert engine.scheduler.stats().waiting == 1
    elif when == "ended":
        while victim not in engine.reasons:
            engine.step()
    return None


@pytest.mark.parametrize("call", ["abort", "finish"])
@pytest.mark.parametrize("when", ["waiting", "partial", "decoding", "out", "preempted", "ended"])
def test_s005_an_end_at_any_state_of_a_request_leaves_nothing(when: str, call: str) -> None:
    """One request is aborted while it waits, mid-prompt, decoding, planned, preempted, ended.

    L1, L2: whatever it held is available at idle, and the other request is not disturbed.
    """
    engine = Engine(6, 4, max_num_batched_tokens=8)
    other = engine.add(range(100, 107), max_tokens=12)
    victim = engine.add(range(200, 211), max_tokens=9)
    plan = _bring_to(when, engine, victim)
    getattr(engine.scheduler, call)(victim)
    if plan is not None:
        engine.end(plan)
    engine.run()
    engine.assert_idle()
    assert engine.outputs[other] == plain_output(range(100, 107), 12)
    wanted = Reason.ABORTED if call == "abort" else Reason.FINISHED
    assert engine.reasons[victim] == (Reason.LENGTH if when == "ended" else wanted)


def test_s007_evictable_blocks_are_counted_once_however_many_chains_share_them() -> None:
    """Two cached chains share their first block: three blocks, not four, can be evicted.

    L1: evictable and blank never add up to more than the pool.
    """
    cache = octavo.KVCache(6, 4)
    one, two = fill(cache, [*range(4), 10, 11, 12, 13]), fill(cache, [*range(4), 20, 21, 22, 23])
    for seq in (one, two):
        cache.close(seq)
        stats = cache.stats()
        assert stats.available + stats.held == 6
    assert (stats.cached, stats.blank, stats.available) == (3, 3, 6)
    seq = cache.open()
    cache.reserve(seq, 24)
    assert sorted(as_list(cache.table(seq))) == list(range(6))
    with pytest.raises(OutOfBlocks):
        cache.reserve(seq, 25)


def test_s008_an_admission_that_lacks_blocks_takes_no_row() -> None:
    """Rows are free but blocks are not, step after step: neither kind is touched by the attempt.

    L12 over all resources; the request is admitted as soon as both are there.
    """
    engine = Engine(4, 4, max_num_seqs=4)
    engine.add(range(12), max_tokens=4)
    late = engine.add(range(50, 58), max_tokens=1)
    engine.step()
    for _ in range(2):
        plan = engine.begin()
        stats = engine.scheduler.stats()
        assert (stats.running, stats.waiting, stats.held) == (1, 1, 4)
        assert as_list(plan.admitted) == []
        engine.end(plan)
    engine.run()
    admitting = next(plan for plan in engine.plans if late in plan["admitted"])
    assert admitting["rows"] == [0], "the lowest row, which the first request gave back"
    engine.assert_idle()


def test_s010_a_pool_as_large_as_one_request_serves_it() -> None:
    """A prompt of 16 in a pool of 4 x 4 takes exactly four blocks, reserved once and filled once.

    L1: reserve-then-advance never allocates a second time.
    """
    engine = Engine(4, 4)
    seq = engine.add(range(16), max_tokens=1)
    plan = engine.begin()
    assert len(as_list(plan.table_changes)) == 4
    assert engine.scheduler.stats().held == 4
    engine.end(plan)
    engine.run()
    assert engine.reasons[seq] == Reason.LENGTH

    cache = octavo.KVCache(4, 4)
    seq = cache.open(range(16))
    cache.reserve(seq, 16)
    assert cache.stats().held == 4
    cache.advance(seq, range(16))
    assert cache.stats().held == 4
    assert sorted(as_list(cache.table(seq))) == [0, 1, 2, 3]


def test_s011_demand_is_counted_in_blocks_not_in_tokens() -> None:
    """Six sequences stand at the end of a 64-token block, four blocks are left: six are needed.

    L10, L11: one victim's block and the four serve five; the step is made, nothing is thrown.
    """
    cache = octavo.KVCache(10, 64)
    seqs = [fill(cache, range(100 * index, 100 * index + 64)) for index in range(6)]
    for seq in seqs[:4]:
        cache.reserve(seq, 65)
    for seq in seqs[4:]:
        assert not cache.can_reserve(seq, 65)
        with pytest.raises(OutOfBlocks) as caught:
            cache.reserve(seq, 65)
        assert (caught.value.needed, caught.value.available) == (1, 0)

    engine = Engine(10, 64, prefix_caching=False)
    seqs = [engine.add(range(100 * index, 100 * index + 64), max_tokens=3) for index in range(6)]
    engine.step()
    step = engine.step()
    assert step["seqs"] == seqs[:5]
    assert step["preempted"] == seqs[5:]
    assert engine.scheduler.stats().held == 10
    engine.run()
    assert [engine.reasons[seq] for seq in seqs] == [Reason.LENGTH] * 6
    engine.assert_idle()


def test_s016_chains_that_come_and_go_leave_no_memory_behind() -> None:
    """Chains of 1,000 blocks are cached, cut after the first block and evicted, many times over.

    Bytes held are bounded by the live blocks: the process does not grow with the rounds.
    """
    cache = octavo.KVCache(1_000, 4)

    def one_round(index: int) -> None:
        start = index * 4_000
        remember(cache, range(start, start + 4_000))
        shared = cache.open([*range(start, start + 4), 0])
        assert cache.num_computed(shared) == 4
        cache.reserve(shared, 3_000)
        cache.close(shared)

    for index in range(20):
        one_round(index)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(20, 220):
        one_round(index)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4_000, f"grew by {grown} KiB over 200 rounds"
    assert cache.stats().available == 1_000


def test_s018_hits_leave_the_supply_only_if_nobody_held_them() -> None:
    """Pool 4 x 4, three cached blocks of which A finds two and needs two more: it fits exactly.

    L6: neither hit is evicted for A's own sake. When somebody else already holds the hits, they
    were never part of the supply and must not be taken out of it twice.
    """
    engine = Engine(4, 4)
    engine.add([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=0)
    engine.add([21, 22, 23, 24], max_tokens=0)
    engine.run()
    assert engine.scheduler.stats().cached == 3
    found = engine.add([1, 2, 3, 4, 5, 6, 7, 8, *range(30, 38)], max_tokens=1)
    step = engine.step()
    assert step["admitted"] == [found]
    assert step["num_tokens"] == [8]
    engine.run()
    assert engine.scheduler.stats().prefix_hits == 8
    assert engine.outputs[found] == plain_output([1, 2, 3, 4, 5, 6, 7, 8, *range(30, 38)], 1)

    engine = Engine(6, 4)
    first = engine.add([*range(8), 50], max_tokens=3)
    engine.step()
    second = engine.add([*range(8), 60, 61, 62, 63, 64], max_tokens=1)
    step = engine.step()
    assert step["admitted"] == [second], "3 held, 2 of them hits: 2 more are needed, 3 are there"
    engine.run()
    assert engine.outputs[first] == plain_output([*range(8), 50], 3)
    assert engine.outputs[second] == plain_output([*range(8), 60, 61, 62, 63, 64], 1)


def test_s018_one_block_less_and_the_admission_waits_whole() -> None:
    """The same shape with a block more to compute: nothing is claimed, nothing is evicted."""
    engine = Engine(4, 4)
    engine.add([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=0)
    engine.run()
    engine.add([50, 51, 52, 53], max_tokens=2)
    engine.step()
    engine.add([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)
    plan = engine.begin()
    stats = engine.scheduler.stats()
    assert as_list(plan.admitted) == []
    assert (stats.cached, stats.held, stats.evicted_blocks, stats.waiting) == (2, 2, 0, 1)
    assert engine.scheduler.match([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 8
    engine.end(plan)
    engine.run()
    engine.assert_idle()


def test_s153_a_refused_reservation_leaves_the_blank_stack_as_it_was() -> None:
    """A reservation that cannot be met is refused before anything is popped.

    L12, L13: afterwards blocks come in the order in which they would have come without it.
    """
    refused, plain = octavo.KVCache(5, 4), octavo.KVCache(5, 4)
    tables = []
    for cache in (refused, plain):
        held = [cache.open() for _ in range(3)]
        for seq in held:
            cache.reserve(seq, 4)
        cache.close(held[1])
        cache.close(held[0])
        seq = cache.open()
        if cache is refused:
            before = stats_view(cache.stats(), CACHE_STATS)
            with pytest.raises(OutOfBlocks) as caught:
                cache.reserve(seq, 20)
            assert (caught.value.needed, caught.value.available) == (5, 4)
            assert stats_view(cache.stats(), CACHE_STATS) == before
        cache.reserve(seq, 16)
        tables.append(as_list(cache.table(seq)))
    assert tables[0] == tables[1] == [0, 1, 3, 4]


def test_s153_progress_is_not_kept_over_a_preemption() -> None:
    """What a preempted request had computed counts as nothing until the cache says otherwise."""
    engine = Engine(3, 4, prefix_caching=False)
    engine.add(range(4), max_tokens=6)
    late = engine.add(range(50, 54), max_tokens=3)
    engine.step()
    step = engine.step()
    assert step["preempted"] == [late]
    engine.run()
    resuming = next(plan for plan in engine.plans if late in plan["resumed"])
    assert resuming["num_tokens"][resuming["seqs"].index(late)] == 5
    assert engine.outputs[late] == plain_output(range(50, 54), 3)


def test_s164_the_index_of_a_full_cache_is_bounded_by_its_blocks() -> None:
    """10^4 random prefixes pass through a pool of 16 blocks: never more than 16 are findable."""
    cache = octavo.KVCache(16, 2)
    for index in range(10_000):
        remember(cache, [index % 97, index % 89, index % 83, index % 79])
    assert cache.stats().cached <= 16
    assert cache.clear()
    assert cache.stats().blank == 16
    holder = fill_up(cache)
    assert len(cache.table(holder)) == 16
    assert cache.match([0, 0, 0]) == 0


def test_s002_scheduler_statistics_never_show_more_than_the_pool() -> None:
    """The same fault seen by an operator: no sum of block counts ever passes 100 %."""
    engine = Engine(5, 2, max_num_batched_tokens=7)
    for index in range(12):
        engine.add([index % 3, index % 2, 7, index % 5], max_tokens=1 + index % 4)

    def check(_: object) -> None:
        stats = stats_view(engine.scheduler.stats(), SCHEDULER_STATS)
        assert stats["held"] + stats["cached"] + stats["blank"] + stats["fenced"] == 5
        assert 0 <= stats["available"] <= 5
        assert all(value >= 0 for value in stats.values())

    engine.run(each=check)
    engine.assert_idle()

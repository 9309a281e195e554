"""Scenarios about the prefix cache: what is found, and what must never be."""

from __future__ import annotations

from itertools import pairwise

import pytest

import octavo
from octavo import OutOfBlocks, RequestError
from support.drive import Engine, fill, fill_up, remember
from support.toy_model import plain_output
from support.views import CACHE_STATS, as_list, stats_view


def test_s019_a_block_used_again_is_no_longer_found_under_its_old_tokens() -> None:
    """Pool 1 x 4: X is cached, Y takes the same block. X must miss, Y must hit (L4)."""
    cache = octavo.KVCache(1, 4)
    remember(cache, [1, 2, 3, 4])
    assert cache.match([1, 2, 3, 4, 0]) == 4
    seq = cache.open([5, 6, 7, 8])
    cache.reserve(seq, 4)
    assert cache.match([1, 2, 3, 4, 0]) == 0, "in the operation that gives the block away"
    cache.advance(seq, [5, 6, 7, 8])
    assert cache.match([1, 2, 3, 4, 0]) == 0
    assert cache.match([5, 6, 7, 8, 0]) == 4


@pytest.mark.parametrize("road", ["pressure", "clear", "rewritten", "unpublished"])
def test_s020_every_road_out_of_the_cache_forgets_both_ways(road: str) -> None:
    """A block leaves by eviction, by a reset, by being written over, or was never published.

    L4: on each road it is found neither before nor after it has new contents, and the new ones are.
    """
    cache = octavo.KVCache(2, 4)
    if road == "pressure":
        remember(cache, range(8))
        remember(cache, range(50, 58))
    elif road == "clear":
        remember(cache, range(8))
        assert cache.clear()
    elif road == "rewritten":
        seq = fill(cache, range(4))
        cache.truncate(seq, 2)
        cache.reserve(seq, 4)
        assert cache.match([*range(4), 0]) == 0
        cache.advance(seq, [60, 61])
        assert cache.match([0, 1, 60, 61, 0]) == 4
        cache.close(seq)
    else:
        seq = fill(cache, range(3))
        assert cache.stats().published_blocks == 0
        cache.close(seq)
    assert cache.match([*range(4), 0]) == 0
    remember(cache, range(70, 78))
    assert cache.match([*range(70, 78), 0]) == 8
    assert cache.match([*range(4), 0]) == 0
    cache.audit()


def test_s022_hits_that_nobody_holds_are_charged_before_anything_changes() -> None:
    """Pool 3 x 4: A finds two cached blocks and needs two more, but only one is left.

    L12: it is refused up front, with both numbers, and the cached blocks are still there.
    """
    cache = octavo.KVCache(3, 4)
    remember(cache, range(8))
    seq = cache.open([*range(8), *range(20, 28)])
    assert cache.num_computed(seq) == 8
    before = stats_view(cache.stats(), CACHE_STATS)
    with pytest.raises(OutOfBlocks) as caught:
        cache.reserve(seq, 16)
    assert (caught.value.needed, caught.value.available) == (2, 1)
    assert stats_view(cache.stats(), CACHE_STATS) == before
    cache.close(seq)
    assert cache.match([*range(8), 0]) == 8

    engine = Engine(3, 4)
    engine.add(range(8), max_tokens=0)
    engine.run()
    with pytest.raises(RequestError):
        engine.scheduler.add([*range(8), *range(20, 28)], max_tokens=1)
    assert engine.scheduler.match([*range(8), 0]) == 8


def test_s022_claiming_a_cached_block_destroys_it_for_nobody() -> None:
    """A second and a third sequence find what the first one claimed from the cached blocks."""
    cache = octavo.KVCache(4, 4)
    remember(cache, range(8))
    seqs = [cache.open([*range(8), 9]) for _ in range(3)]
    assert [cache.num_computed(seq) for seq in seqs] == [8, 8, 8]
    assert len({tuple(as_list(cache.table(seq))) for seq in seqs}) == 1
    for seq in seqs:
        cache.close(seq)
    assert cache.stats().cached == 2


def test_s022_a_block_is_not_found_before_its_last_token_is_computed() -> None:
    """With chunks of two tokens a block of four is a miss until the second chunk's commit (L4)."""
    engine = Engine(4, 4, max_num_batched_tokens=2)
    engine.add(range(8), max_tokens=1)
    found = []
    while engine.scheduler.has_work:
        plan = engine.begin()
        found.append(engine.scheduler.match([*range(8), 9]))
        engine.end(plan)
    found.append(engine.scheduler.match([*range(8), 9]))
    assert found == [0, 0, 4, 4, 8]


def test_s031_a_prompt_that_is_cached_whole_computes_its_last_block_again() -> None:
    """B = 4, the prompt [1 .. 8] run three times: a hit of 4, then at least a token to compute.

    The blocks behind it are published below the right parent, so a third run finds them.
    """
    engine = Engine(16, 4)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    engine.add(prompt, max_tokens=8)
    engine.run()
    hits = []
    for _ in range(2):
        before = engine.scheduler.stats().prefix_hits
        seq = engine.add(prompt, max_tokens=8)
        step = engine.step()
        assert step["num_tokens"] == [4]
        hits.append(engine.scheduler.stats().prefix_hits - before)
        engine.run()
        assert engine.outputs[seq] == plain_output(prompt, 8)
    assert hits == [4, 4]
    longer = [*prompt, *plain_output(prompt, 7), 0]
    assert engine.scheduler.match(longer) == 12
    seq = engine.add(longer, max_tokens=2)
    assert engine.step()["num_tokens"] == [4]
    engine.run()
    assert engine.outputs[seq] == plain_output(longer, 2)


@pytest.mark.parametrize(
    ("length", "hit"), [(12, 8), (13, 12), (14, 12), (16, 12), (17, 16), (4, 0), (5, 4), (1, 0)]
)
def test_s032_a_hit_stops_at_the_last_block_that_leaves_a_token(length: int, hit: int) -> None:
    """B = 4: the ceiling is (n - 1) // 4 * 4, for the allocator and for the scheduler."""
    tokens = list(range(20))
    cache = octavo.KVCache(8, 4)
    remember(cache, tokens)
    assert cache.match(tokens[:length]) == hit
    assert cache.num_computed(cache.open(tokens[:length])) == hit
    engine = Engine(16, 4)
    engine.add(tokens, max_tokens=0)
    engine.run()
    engine.add(tokens[:length], max_tokens=1)
    assert engine.step()["num_tokens"] == [length - hit]


def test_s034_blocks_behind_a_missing_one_are_no_hits() -> None:
    """A chain of three loses blocks to pressure: what is left is always a prefix of the chain.

    L6: the first block is never the first to go, so a hit of 2 or 3 without 1 cannot arise.
    """
    cache = octavo.KVCache(3, 4)
    chain = [*range(12), 99]
    remember(cache, range(12))
    hits = []
    holder = cache.open()
    for num_blocks in range(4):
        cache.reserve(holder, 4 * num_blocks)
        hits.append(cache.match(chain))
    assert hits == [12, 8, 4, 0]


@pytest.mark.parametrize("suffix", [1, 2, 3, 4, 5])
def test_s035_warm_and_cold_runs_give_the_same_tokens(suffix: int) -> None:
    """A prefix of exactly one block, suffixes of 1 to B + 1, with the cache on and off.

    The theorem: whatever was found, each sequence's tokens are those of the plain model.
    """
    prefix = [5, 6, 7, 8]
    prompt = [*prefix, *range(20, 20 + suffix)]
    wanted = plain_output(prompt, 9)
    for caching in (True, False):
        engine = Engine(16, 4, prefix_caching=caching)
        engine.add([*prefix, 1], max_tokens=2)
        engine.run()
        seq = engine.add(prompt, max_tokens=9)
        again = engine.add(prompt, max_tokens=9)
        engine.run()
        assert engine.outputs[seq] == engine.outputs[again] == wanted
        assert engine.scheduler.stats().prefix_hits == (8 if caching else 0)


def test_s041_evicting_takes_as_many_as_were_asked_for() -> None:
    """In the order of eviction stand blocks that somebody holds; they count for nothing.

    Two are asked for and two go; asking for more than there are changes nothing (L12).
    """
    cache = octavo.KVCache(5, 4)
    for first in range(0, 50, 10):
        remember(cache, range(first, first + 4))
    shared = [cache.open([*range(first, first + 4), 0]) for first in (0, 10)]
    assert cache.stats().available == 3
    seq = cache.open()
    with pytest.raises(OutOfBlocks) as caught:
        cache.reserve(seq, 16)
    assert (caught.value.needed, caught.value.available) == (4, 3)
    cache.reserve(seq, 8)
    assert cache.stats().evicted_blocks == 2
    hits = [cache.match([*range(first, first + 4), 0]) for first in range(0, 50, 10)]
    assert hits == [4, 4, 0, 0, 4]
    assert [cache.num_computed(seq) for seq in shared] == [4, 4]


def test_s042_a_match_that_ends_inside_a_chain_holds_no_more_than_it_found() -> None:
    """[1 .. 12] is cached; a query leaves the chain after 8 and goes on by itself, twice.

    L1, L2: once all are closed every block can be evicted.
    """
    cache = octavo.KVCache(8, 4)
    remember(cache, range(1, 13))
    for _ in range(3):
        seq = cache.open([*range(1, 9), 99, 100, 101, 102])
        assert cache.num_computed(seq) == 8
        stats = cache.stats()
        assert stats.held == 2
        cache.reserve(seq, 12)
        cache.advance(seq, [99, 100, 101, 102])
        cache.close(seq)
    assert cache.stats().held == 0
    assert cache.stats().cached == 4
    fill_up(cache)
    assert cache.stats().cached == 0
    assert cache.stats().held == 8


def test_s044_a_parent_never_goes_before_its_child_whatever_was_claimed_in_between() -> None:
    """A tree of chains is claimed and let go in many orders, then evicted block by block.

    L6: at every moment each chain's findable part is a prefix of it.
    """
    chains = [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 3, 3], [0, 0, 4, 4], [5, 5, 6, 6]]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]):
        cache = octavo.KVCache(7, 2)
        for chain in chains:
            remember(cache, chain)
        held = [cache.open([*chains[index][: 2 * (1 + index % 3)], 9]) for index in order]
        for seq in held[1:] + held[:1]:
            cache.close(seq)
        holder = cache.open()
        before = [cache.match([*chain, 9]) for chain in chains]
        for num_blocks in range(1, 8):
            cache.reserve(holder, 2 * num_blocks)
            after = [cache.match([*chain, 9]) for chain in chains]
            cache.audit()
            assert all(now <= then for then, now in zip(before, after, strict=True))
            findable = {tuple(chain[:end]) for chain, end in zip(chains, after, strict=True)}
            distinct = {prefix[:end] for prefix in findable for end in range(2, len(prefix) + 1, 2)}
            assert len(distinct) == 7 - num_blocks, "every block that is left is reachable"
            before = after


def test_s045_blocks_freed_late_are_evicted_in_the_same_order() -> None:
    """The same two chains are closed at once, and under an open step that ends later.

    L6, L7: waiting delays the eviction and does not change its order.
    """
    orders = []
    for deferred in (False, True):
        cache = octavo.KVCache(4, 2)
        chains = [[1, 1, 2, 2], [3, 3, 4, 4]]
        seqs = [fill(cache, chain) for chain in chains]
        step = cache.begin_step() if deferred else None
        for seq in seqs:
            cache.close(seq)
        if step is not None:
            assert cache.stats().available == 0
            cache.end_step(step)
        holder = cache.open()
        hits = []
        for num_blocks in range(1, 5):
            cache.reserve(holder, 2 * num_blocks)
            hits.append([cache.match([*chain, 9]) for chain in chains])
        orders.append((hits, as_list(cache.table(holder))))
    assert orders[0] == orders[1]
    assert orders[0][0] == [[2, 4], [0, 4], [0, 2], [0, 0]]


def test_s047_prefixes_that_were_popular_once_leave_when_they_are_not_used() -> None:
    """Three prefixes are hit a hundred times, then a thousand requests use new ones; pool of 3.

    The stated policy is least recently used: past popularity counts for nothing.
    """
    cache = octavo.KVCache(3, 4)
    old = [list(range(first, first + 4)) for first in (0, 10, 20)]
    for _ in range(100):
        for prefix in old:
            remember(cache, prefix)
    assert [cache.match([*prefix, 0]) for prefix in old] == [4, 4, 4]
    for index in range(1_000):
        remember(cache, range(100 + 4 * index, 104 + 4 * index))
    assert [cache.match([*prefix, 0]) for prefix in old] == [0, 0, 0]
    assert cache.match([*range(100 + 4 * 999, 104 + 4 * 999), 0]) == 4


def test_s047_a_hit_makes_a_prefix_recent_and_a_look_does_not() -> None:
    """`match` only looks: the block that a hit used outlives the one that was merely looked at."""
    cache = octavo.KVCache(2, 4)
    used, looked_at = [1, 2, 3, 4], [5, 6, 7, 8]
    remember(cache, used)
    remember(cache, looked_at)
    cache.close(cache.open([*used, 0]))
    for _ in range(10):
        assert cache.match([*looked_at, 0]) == 4
    cache.reserve(cache.open(), 4)
    assert (cache.match([*used, 0]), cache.match([*looked_at, 0])) == (4, 0)


def test_s066_a_block_that_is_being_written_makes_nobody_wait() -> None:
    """Two equal prompts overlap; the second cannot find what the first one is still computing.

    L4, L11: it computes the tokens itself, at once, and the twins are merged afterwards.
    """
    engine = Engine(16, 4, max_num_batched_tokens=6)
    first = engine.add(range(10), max_tokens=2)
    second = engine.add(range(10), max_tokens=2)
    progress = [engine.step()["num_tokens"] for _ in range(2)]
    assert progress[0] == [6]
    assert len(progress[1]) == 2
    engine.run()
    assert engine.outputs[first] == engine.outputs[second] == plain_output(range(10), 2)
    assert engine.scheduler.stats().cached == 2
    engine.assert_idle()


def test_s032_hits_grow_with_the_prompt_and_never_shrink() -> None:
    """Other lengths and block sizes of the same kind: no off-by-one at any boundary."""
    for block_size in (1, 2, 3, 5, 16):
        cache = octavo.KVCache(64, block_size)
        tokens = list(range(3 * block_size + 2))
        remember(cache, tokens)
        hits = [cache.match(tokens[:length]) for length in range(1, len(tokens) + 1)]
        assert hits == [(n - 1) // block_size * block_size for n in range(1, len(tokens) + 1)]
        assert all(before <= after for before, after in pairwise(hits))

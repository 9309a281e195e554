"""Scenarios about forks, copies and beams: two owners of one block, and one of them writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import octavo
from octavo import OutOfBlocks, Reason, StateError
from support.drive import Engine, fill, remember
from support.toy_model import PagedModel, plain_output
from support.views import as_list

if TYPE_CHECKING:
    from collections.abc import Sequence


class Beams:
    """Sequences of one `KVCache` with a model that reads and writes through their tables."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = octavo.KVCache(num_blocks, block_size)
        self.model = PagedModel(num_blocks, block_size)
        self.tokens: dict[int, list[int]] = {}

    def open(self, tokens: Sequence[int]) -> int:
        seq = self.cache.open(list(tokens))
        self.tokens[seq] = list(tokens)[: self.cache.num_computed(seq)]
        self.write([seq], [list(tokens)[len(self.tokens[seq]) :]])
        return seq

    def fork(self, seq: int) -> int:
        child = self.cache.fork(seq)
        self.tokens[child] = list(self.tokens[seq])
        return child

    def write(self, seqs: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """One step: reserve for all, do the copies, compute, advance."""
        for seq, new in zip(seqs, tokens, strict=True):
            self.cache.reserve(seq, len(self.tokens[seq]) + len(new))
        self.model.copy(as_list(self.cache.take_ops().copies))
        for seq, new in zip(seqs, tokens, strict=True):
            table = as_list(self.cache.table(seq))
            for token in new:
                self.model.compute(table, len(self.tokens[seq]), token)
                self.tokens[seq].append(token)
            self.cache.advance(seq, list(new))
        self.cache.audit()

    def close(self, seq: int) -> None:
        self.cache.close(seq)
        del self.tokens[seq]

    def assert_intact(self) -> None:
        """What lies in the slots of every sequence is what it wrote or inherited."""
        for seq, tokens in self.tokens.items():
            table = as_list(self.cache.table(seq))
            plain = PagedModel(len(tokens) + 1, self.model.block_size)
            for position, token in enumerate(tokens):
                wanted = plain.compute(list(range(len(tokens) + 1)), position, token)
                assert self.model.memory[self.model.slot(table, position)] == wanted


@pytest.mark.parametrize("prompt_length", [7, 8, 9])
def test_s048_beams_that_fork_and_die_for_many_steps_give_all_blocks_back(
    prompt_length: int,
) -> None:
    """Pool 16 x 4, four beams; each step two parents are forked twice and two are dropped.

    L1, L2: nobody's block is freed twice or kept; no beam sees another one's tokens.
    """
    beams = Beams(16, 4)
    alive = [beams.open(range(prompt_length))]
    alive += [beams.fork(alive[0]) for _ in range(3)]
    for step in range(10):
        beams.write(alive, [[100 + 10 * step + index] for index in range(4)])
        beams.assert_intact()
        kept = [alive[1], alive[3]]
        children = [beams.fork(parent) for parent in kept]
        for seq in (alive[0], alive[2]):
            beams.close(seq)
        alive = [kept[0], children[0], kept[1], children[1]]
        assert beams.cache.stats().sequences == 4
    alive.sort(key=lambda seq: seq * 7919 % 101)
    for seq in alive:
        beams.close(seq)
    stats = beams.cache.stats()
    assert (stats.available, stats.held, stats.fenced) == (16, 0, 0)
    for seq in alive:
        with pytest.raises(octavo.StaleHandleError):
            beams.cache.close(seq)


def test_s049_a_tail_that_its_owner_still_writes_is_never_shared_unseen() -> None:
    """Pool 8 x 4: A decodes at 6 tokens; B's prompt begins with the same 6 and goes on its own way.

    L3: B finds only the full block and computes the rest itself; both then write different
    tokens, and neither sees the other's.
    """
    beams = Beams(8, 4)
    one = beams.open(range(6))
    two = beams.open([*range(6), 50])
    tables = [as_list(beams.cache.table(seq)) for seq in (one, two)]
    assert tables[0][0] == tables[1][0]
    assert tables[0][1] != tables[1][1]
    for step in range(6):
        beams.write([one, two], [[200 + step], [300 + step]])
        beams.assert_intact()
    assert beams.cache.stats().copies == 0


def test_s049_a_forked_tail_is_copied_for_whoever_writes_first() -> None:
    """The same with a fork: one copy of the two valid tokens, and the other writes in place."""
    beams = Beams(8, 4)
    one = beams.open(range(6))
    two = beams.fork(one)
    three = beams.fork(one)
    before = as_list(beams.cache.table(one))
    beams.cache.reserve(two, 7)
    beams.cache.reserve(three, 7)
    beams.cache.reserve(one, 7)
    copies = as_list(beams.cache.take_ops().copies)
    assert [(source, length) for source, _, length in copies] == [(before[1], 2)] * 2
    assert as_list(beams.cache.table(one)) == before, "the last one writes where it always did"
    beams.model.copy(copies)
    beams.write([one, two, three], [[7], [8], [9]])
    beams.assert_intact()


def test_s049_a_published_tail_is_copied_before_it_is_written_again() -> None:
    """A rolls back into a full block that B found: the block is B's and the cache's, not A's."""
    beams = Beams(8, 4)
    one = beams.open(range(8))
    two = beams.open([*range(8), 60])
    beams.cache.truncate(one, 6)
    del beams.tokens[one][6:]
    beams.write([one], [[70, 71]])
    beams.assert_intact()
    assert beams.cache.stats().copies == 1
    assert beams.cache.match([*range(8), 0]) == 8
    assert beams.cache.match([*range(6), 70, 71, 0]) == 8
    assert beams.tokens[two] == [*range(8), 60]


def test_s051_a_twin_of_a_cached_chain_is_freed_once() -> None:
    """Chain X is cached; B computes the same contents itself; X and B go; three are allocated.

    L1: three distinct ids, since a block enters the blank stack once.
    """
    cache = octavo.KVCache(4, 4)
    racing = [cache.open(range(8)) for _ in range(2)]
    for seq in racing:
        cache.reserve(seq, 8)
    assert cache.stats().held == 4
    for seq in racing:
        cache.advance(seq, range(8))
    assert cache.stats().merged_blocks == 2
    assert as_list(cache.table(racing[0])) == as_list(cache.table(racing[1]))
    for seq in racing:
        cache.close(seq)
    fresh = [cache.open() for _ in range(4)]
    for seq in fresh:
        cache.reserve(seq, 4)
    given = [as_list(cache.table(seq))[0] for seq in fresh]
    assert sorted(given) == [0, 1, 2, 3]
    cache.audit()


def test_s052_a_promised_hit_is_not_evicted_for_a_request_admitted_before() -> None:
    """Pool 4 x 4, two cached blocks that B will find; A needs two, both come in one step.

    L6, L10: A takes the blank ones, B its hits and no more tokens than were planned for.
    """
    engine = Engine(5, 4)
    engine.add(range(8), max_tokens=0)
    engine.run()
    one = engine.add(range(50, 58), max_tokens=1)
    two = engine.add([*range(8), 9], max_tokens=1)
    plan = engine.begin()
    assert as_list(plan.admitted) == [one, two]
    assert as_list(plan.num_tokens) == [8, 1]
    assert engine.scheduler.stats().evicted_blocks == 0
    engine.end(plan)
    engine.run()
    assert engine.outputs[two] == plain_output([*range(8), 9], 1)


def test_s052_an_earlier_request_may_evict_and_the_later_one_then_counts_again() -> None:
    """One block less: A has to evict B's second hit. B's look-up comes after, and sees it gone."""
    engine = Engine(4, 4)
    engine.add(range(8), max_tokens=0)
    engine.run()
    one = engine.add(range(50, 62), max_tokens=1)
    two = engine.add([*range(8), 9], max_tokens=1)
    plan = engine.begin()
    assert as_list(plan.admitted) == [one]
    assert engine.scheduler.match([*range(8), 9]) == 4
    engine.end(plan)
    engine.run()
    hits = engine.scheduler.stats().prefix_hits
    assert hits == 4, "found at the admission, not promised before"
    assert engine.outputs[two] == plain_output([*range(8), 9], 1)


def test_s054_without_host_blocks_a_preemption_recomputes() -> None:
    """No swap area at all: preempting is a matter of recomputing, never of raising (L11)."""
    engine = Engine(4, 4, host_blocks=0)
    seqs = [engine.add(range(10 * index, 10 * index + 7), max_tokens=8) for index in range(2)]
    engine.run()
    assert engine.scheduler.stats().preemptions > 0
    for index, seq in enumerate(seqs):
        assert engine.reasons[seq] == Reason.LENGTH
        assert engine.outputs[seq] == plain_output(range(10 * index, 10 * index + 7), 8)
    with pytest.raises(octavo.ConfigError) as caught:
        octavo.Scheduler(4, host_blocks=1)
    assert caught.value.field == "host_blocks"


def test_s054_a_group_of_four_that_is_preempted_is_computed_again() -> None:
    """Four sequences of one prompt outgrow the pool together; no swap area, nothing raised.

    They share the prompt, are preempted one by one, and each ends with all its tokens.
    """
    scheduler = octavo.Scheduler(5, block_size=4, max_model_len=64, watermark=0.0)
    seqs = scheduler.sequences(scheduler.add(range(6), max_tokens=8, n=4))
    outputs = {seq: [] for seq in seqs}
    for now in range(200):
        plan = scheduler.step(float(now))
        scheduler.audit()
        if plan is None:
            continue
        sampled = [int(seq) % 97 for seq in plan.sample_seqs]
        for seq, tokens in scheduler.commit(plan, sampled):
            outputs[seq] += list(tokens)
    assert scheduler.stats().preemptions > 0
    assert outputs == {seq: [seq % 97] * 8 for seq in seqs}
    assert not scheduler.has_work
    assert scheduler.stats().available == 5


def test_s055_beams_cost_a_tail_each_and_not_a_prompt_each() -> None:
    """Four beams over a prompt of 64 for 64 steps: shared blocks plus a bounded tail per beam.

    L3: a step copies at most one block per beam.
    """
    block_size, num_beams = 16, 4
    cache = octavo.KVCache(64, block_size)
    alive = [fill(cache, range(64))]
    alive += [cache.fork(alive[0]) for _ in range(num_beams - 1)]
    assert cache.stats().held == 4
    for step in range(64):
        for index, seq in enumerate(alive):
            cache.reserve(seq, 65 + step)
            cache.advance(seq, [1_000 * (index + 1) + step])
        assert len(cache.take_ops().copies) <= num_beams
        grown = -(-(step + 1) // block_size)
        assert cache.stats().held <= 4 + num_beams * grown
        # The best beam takes the place of the worst one.
        cache.close(alive[-1])
        alive[-1] = cache.fork(alive[0])
    for seq in alive:
        cache.close(seq)
    assert cache.stats().available == 64


def test_s048_a_fork_needs_no_block_and_a_write_that_has_none_changes_nothing() -> None:
    """In a full pool a fork still works; writing its tail needs a copy and is refused whole."""
    cache = octavo.KVCache(2, 4)
    one = fill(cache, range(6))
    two = cache.fork(one)
    before = (cache.draw(), as_list(cache.table(one)), as_list(cache.table(two)))
    with pytest.raises(OutOfBlocks) as caught:
        cache.reserve(two, 7)
    assert (caught.value.needed, caught.value.available) == (1, 0)
    with pytest.raises(StateError):
        cache.advance(two, [7])
    assert (cache.draw(), as_list(cache.table(one)), as_list(cache.table(two))) == before
    assert len(cache.take_ops().copies) == 0
    cache.close(one)
    cache.reserve(two, 7)
    assert len(cache.take_ops().copies) == 0, "alone again, it writes in place"


def test_s052_a_copy_holds_its_source_until_its_step_has_ended() -> None:
    """The source of a copy is let go by its last table while the step runs: it must not vanish.

    L2, L7: it is held by the copy alone, then available again.
    """
    cache = octavo.KVCache(3, 4)
    one = fill(cache, range(6))
    two = cache.fork(one)
    step = cache.begin_step()
    cache.reserve(two, 7)
    (copy,) = as_list(cache.take_ops().copies)
    cache.close(one)
    assert cache.stats().held == 3, "block 0, the copy's source, and its target"
    starved: Any = cache.open()
    with pytest.raises(OutOfBlocks):
        cache.reserve(starved, 1)
    cache.end_step(step)
    cache.reserve(starved, 1)
    assert as_list(cache.table(starved)) == [copy[0]]


def test_s042_forks_of_a_cached_chain_leave_every_block_evictable() -> None:
    """Hits, forks and rollbacks over one chain; afterwards nothing holds any of it."""
    cache = octavo.KVCache(12, 4)
    remember(cache, range(12))
    for cut in range(1, 9):
        seq = cache.open([*range(12), 99])
        child = cache.fork(seq)
        cache.truncate(child, cut)
        cache.reserve(child, cut + 3)
        cache.take_ops()
        cache.advance(child, [70 + cut, 80 + cut, 90 + cut])
        cache.close(seq)
        cache.close(child)
        assert cache.stats().held == 0
    assert cache.stats().available == 12


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("later_step", [False, True])
def test_s044_all_ancestors_outlive_a_block_that_only_a_copy_holds(
    depth: int,
    later_step: bool,  # noqa: FBT001 - both orders of the steps
) -> None:
    """A chain is closed while a copy still reads its last block: the ancestors are cached first.

    L6, L7: once the copy's step has ended, the block goes before its parent, that one before its
    own parent, and so on; also when a later step still guards the block.
    """
    cache = octavo.KVCache(depth + 1, 2)
    chain = list(range(2 * depth))
    one = fill(cache, chain)
    two = cache.fork(one)
    cache.truncate(two, 2 * depth - 1)
    first = cache.begin_step()
    cache.reserve(two, 2 * depth)
    assert as_list(cache.take_ops().copies) == [[depth - 1, depth, 1]]
    cache.close(one)
    cache.close(two)
    second = cache.begin_step() if later_step else None
    cache.end_step(first)
    cache.audit()
    if second is not None:
        assert cache.stats().available <= 1, "nothing above the guarded block can go"
        assert cache.match([*chain, 9]) == 2 * depth
        cache.end_step(second)
    holder, hits = cache.open(), []
    for num_blocks in range(1, depth + 2):
        cache.reserve(holder, 2 * num_blocks)
        hits.append(cache.match([*chain, 9]))
        cache.audit()
    assert hits == [2 * left for left in range(depth, -1, -1)]

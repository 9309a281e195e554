"""The twin's own audit: the laws, checked on its whole state by scanning everything."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.naive_pool import NaivePool
    from support.naive_table import NaiveTable


def check_pool(
    pool: NaivePool, tables: Iterable[NaiveTable], pins: Iterable[list[int]] = ()
) -> None:
    _check_conservation(pool)
    _check_counts(pool, list(tables), list(pins))
    _check_reachable(pool)
    _check_copies(pool)


def _check_conservation(pool: NaivePool) -> None:
    """L1: every block that was ever given out is blank, cached, fenced or held, and only one."""
    held = [number for number, block in pool.blocks.items() if block.count > 0]
    assert sorted([*pool.stack, *pool.recency, *pool.fenced, *held]) == sorted(pool.blocks), "L1"
    given = range(pool.first, pool.first + len(pool.blocks))
    assert sorted(pool.blocks) == list(given), "L1: ids are dense"
    assert len(pool.blocks) <= pool.usable(), "L1"
    for number, block in pool.blocks.items():
        assert (block.fence is not None) == (number in pool.fenced), "L1: fences"
        if number in pool.recency:
            assert block.history is not None, "L1: cached blocks are findable"
        else:
            assert block.guard is None, "L1: only cached blocks are guarded"
        if number in pool.stack or number in pool.fenced:
            assert block.history is None, "L4: a block given away is not findable"


def _check_counts(pool: NaivePool, tables: list[NaiveTable], pins: list[list[int]]) -> None:
    """L2: a block's counts are the entries and twins of tables, the copies that read, the pins."""
    pinned = Counter(number for pin in pins for number in pin)
    named = Counter(number for holder in tables for number in holder.table)
    named += Counter(number for holder in tables for _, number in holder.twins)
    read = Counter(copy.source for copy in pool.pending)
    for holder in tables:
        assert len(set(holder.table)) == len(holder.table), "L2: a table names a block once"
        assert len({index for index, _ in holder.twins}) == len(holder.twins), "L2: twins"
        for index, _ in holder.twins:
            own = pool.blocks[holder.table[index]]
            assert own.history is None, "L5: a block that has a twin is not findable"
    for number, block in pool.blocks.items():
        assert block.tables == named[number], "L2: table entries"
        assert block.copies == read[number], "L2: copies"
        assert block.pins == pinned[number], "L2: pins"


def _check_reachable(pool: NaivePool) -> None:
    """L5 and L6: no two findable blocks are equal, and a child is evicted before its parent."""
    numbers = {block.history: n for n, block in pool.blocks.items() if block.history is not None}
    assert len(numbers) == sum(b.history is not None for b in pool.blocks.values()), "L5"
    for history, number in numbers.items():
        parent = history.parent(pool.block_size)
        if parent is None:
            continue
        assert parent in numbers, "L6: a findable block without its parent"
        if numbers[parent] in pool.recency and number in pool.recency:
            child_at, parent_at = pool.recency.index(number), pool.recency.index(numbers[parent])
            assert child_at < parent_at, "L6: the child is evicted first"
            child_guard, parent_guard = (
                pool.blocks[number].guard,
                pool.blocks[numbers[parent]].guard,
            )
            assert (child_guard or 0) <= (parent_guard or 0), "L6: the child is freed first"
        elif numbers[parent] in pool.recency:
            _check_held_child_waits(pool, number, numbers[parent])


def _check_held_child_waits(pool: NaivePool, child: int, parent: int) -> None:
    """L6: a cached parent of a block that a copy still reads waits for that copy's step.

    Or for a sibling: the cached target of a copy that was not taken.
    """
    assert pool.blocks[child].tables == 0, "L6: a table holds a child but not its parent"
    targets = [copy.target for copy in pool.pending if copy.source == child and not copy.taken]
    cached = [pool.recency.index(target) for target in targets if target in pool.recency]
    if cached and min(cached) < pool.recency.index(parent):
        return
    steps = [copy.step for copy in pool.pending if copy.source == child]
    assert (pool.blocks[parent].guard or 0) >= max(step or 0 for step in steps), "L6: read child"


def _check_copies(pool: NaivePool) -> None:
    """§4 of the contract: in one batch no target twice, and no source is another's target."""
    untaken = [copy for copy in pool.pending if not copy.taken]
    targets = [copy.target for copy in untaken]
    assert len(set(targets)) == len(targets), "copies: a target twice"
    assert not set(targets) & {copy.source for copy in untaken}, "copies: a chain"

"""A block table of the naive twin, and the equal blocks beside it where nothing is merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_identity import Identity
    from support.naive_pool import NaivePool


@dataclass(eq=False, kw_only=True)
class NaiveTable:
    table: list[int] = field(default_factory=list)
    # (index, canonical block): the entry's own block is this one's equal, and not findable.
    twins: list[tuple[int, int]] = field(default_factory=list)

    def share_with(self, other: NaiveTable, pool: NaivePool) -> None:
        """Makes `other`, which is empty, a table of the same blocks."""
        other.table, other.twins = list(self.table), list(self.twins)
        for number in self.table:
            pool.claim(number)
        for _, number in self.twins:
            pool.claim(number)

    def release(self, pool: NaivePool, keep: int = 0) -> None:
        """Lets the entries from `keep` on go, tail first, each before its twin."""
        for index in reversed(range(keep, len(self.table))):
            pool.release(self.table.pop())
            self.release_twins(pool, index)

    def release_twins(self, pool: NaivePool, since: int = 0) -> None:
        """Lets the twins of the entries from `since` on go, last index first."""
        for index, number in sorted(self.twins, reverse=True):
            if index >= since:
                self.twins.remove((index, number))
                pool.release(number)

    def give_up_twins(self, pool: NaivePool) -> None:
        """Lets all twins go. What was published below one must not be found without it."""
        first, _ = min(self.twins)
        pool.forget(self.table[first:])
        self.release_twins(pool)

    def publish(
        self,
        pool: NaivePool,
        identity: Identity,
        tokens: Sequence[int],
        indices: range,
        *,
        dedupe: bool,
    ) -> list[int]:
        """Publishes entries that have become full. Returns those that another block replaced."""
        replaced: list[int] = []
        for index in indices:
            history = identity.history(tokens, index + 1, pool.block_size)
            canonical = pool.publish(self.table[index], history, dedupe=dedupe)
            if canonical == self.table[index]:
                continue
            if dedupe:
                self.table[index] = canonical
                replaced.append(index)
            else:
                self.twins.append((index, canonical))
        return replaced

    def tail_to_copy(self, pool: NaivePool, length: int) -> int | None:
        """The entry that must be copied before position `length` is written, if any."""
        index, offset = divmod(length, pool.block_size)
        if offset == 0 or pool.is_writable(self.table[index], offset):
            return None
        return index

    def make_tail_writable(self, pool: NaivePool, length: int) -> int | None:
        """Copies the tail, or takes it out of the index. Returns the entry that was replaced."""
        index, offset = divmod(length, pool.block_size)
        if offset == 0:
            return None
        if pool.is_writable(self.table[index], offset):
            pool.blocks[self.table[index]].history = None
            return None
        self.table[index] = pool.copy(self.table[index], offset)
        return index

"""The naive twin of `octavo.KVCache`: the same calls, results and errors, without a thought."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.errors import (
    OutOfBlocks,
    RequestError,
    StaleHandleError,
    StateError,
    UnknownHandleError,
)
from support.naive_draw import draw
from support.naive_identity import Identity, checked_identity, checked_tokens
from support.naive_laws import check_pool
from support.naive_pins import NaivePins
from support.naive_pool import NaivePool
from support.naive_table import NaiveTable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False)
class _Sequence(NaiveTable):
    identity: Identity
    tokens: list[int] = field(default_factory=list)  # the computed ones
    reserved: int = 0
    epoch: int = 0  # it publishes while this is the cache's

    @property
    def computed(self) -> int:
        return len(self.tokens)


class NaiveCache:
    """Handles are 1, 2, 3 … and never given twice."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        prefix_caching: bool = True,
        dedupe: bool = True,
        reserve_null_block: bool = False,
    ) -> None:
        self.pool = NaivePool(num_blocks, block_size, first=int(reserve_null_block))
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.dedupe = dedupe
        self.alive: dict[int, _Sequence] = {}
        self.num_issued = 0
        self.pins = NaivePins(self.pool, prefix_caching=prefix_caching)
        self.epoch = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    # --- sequences ---------------------------------------------------------------------------

    def open(
        self, tokens: Sequence[int] = (), *, salt: bytes = b"", extra_keys: Sequence[Any] = ()
    ) -> int:
        prompt = checked_tokens("tokens", tokens)
        identity = checked_identity(salt, extra_keys)
        hit = self._hit(identity, prompt)
        for number in hit:
            self.pool.claim(number)
        length = len(hit) * self.block_size
        if self.prefix_caching:
            self.prefix_queries += len(prompt)
            self.prefix_hits += length
        return self._issue(_Sequence(identity, prompt[:length], length, self.epoch, table=hit))

    def match(
        self, tokens: Sequence[int], *, salt: bytes = b"", extra_keys: Sequence[Any] = ()
    ) -> int:
        prompt = checked_tokens("tokens", tokens)
        return len(self._hit(checked_identity(salt, extra_keys), prompt)) * self.block_size

    def num_computed(self, seq: int) -> int:
        return self._sequence(seq).computed

    def can_reserve(self, seq: int, num_tokens: int) -> bool:
        try:
            needed = self._blocks_needed(self._sequence(seq), num_tokens)
        except StateError:
            return False
        return needed <= self.pool.available()

    def reserve(self, seq: int, num_tokens: int) -> None:
        sequence = self._sequence(seq)
        needed = self._blocks_needed(sequence, num_tokens)
        available = self.pool.available()
        if needed > available:
            raise OutOfBlocks(needed, available)
        if num_tokens <= sequence.reserved:
            return
        sequence.make_tail_writable(self.pool, sequence.computed)
        new = _ceil(num_tokens, self.block_size) - len(sequence.table)
        sequence.table += self.pool.allocate(new)
        sequence.reserved = num_tokens

    def advance(self, seq: int, tokens: Sequence[int]) -> None:
        sequence = self._sequence(seq)
        added = checked_tokens("tokens", tokens)
        if sequence.computed + len(added) > sequence.reserved:
            raise StateError("advance beyond the reservation")
        full_before = sequence.computed // self.block_size
        sequence.tokens += added
        if not self.prefix_caching or sequence.epoch != self.epoch:
            return
        now_full = range(full_before, sequence.computed // self.block_size)
        sequence.publish(
            self.pool, sequence.identity, sequence.tokens, now_full, dedupe=self.dedupe
        )

    def truncate(self, seq: int, num_tokens: int) -> None:
        sequence = self._sequence(seq)
        if num_tokens < 0:
            raise RequestError("num_tokens", "is negative")
        if num_tokens > sequence.computed:
            raise StateError("truncate beyond what is computed")
        del sequence.tokens[num_tokens:]
        self._void_reservation(sequence)
        sequence.release_twins(self.pool, since=num_tokens // self.block_size)

    def fork(self, seq: int) -> int:
        parent = self._sequence(seq)
        self._void_reservation(parent)
        child = _Sequence(parent.identity, list(parent.tokens), parent.reserved, parent.epoch)
        parent.share_with(child, self.pool)
        return self._issue(child)

    def close(self, seq: int) -> None:
        self._sequence(seq).release(self.pool)
        del self.alive[seq]

    # --- many at once ------------------------------------------------------------------------

    def open_many(self, prompts: Sequence[Any], **identity: Any) -> list[int]:
        for index, tokens in enumerate(prompts):
            checked_tokens(f"prompts[{index}]", tokens)
        return [self.open(tokens, **identity) for tokens in prompts]

    def match_many(self, prompts: Sequence[Any], **identity: Any) -> list[int]:
        for index, tokens in enumerate(prompts):
            checked_tokens(f"prompts[{index}]", tokens)
        return [self.match(tokens, **identity) for tokens in prompts]

    def reserve_many(self, seqs: Sequence[int], num_tokens: Sequence[int]) -> None:
        """What all need is tried on a copy of everything, in which blocks are never short."""
        self._check_seqs(seqs, "num_tokens", num_tokens)
        trial = copy.deepcopy(self)
        trial.pool.num_blocks += 1_000
        needed = 0
        for seq, length in zip(seqs, num_tokens, strict=True):
            needed += trial._blocks_needed(trial.alive[seq], length)
            trial.reserve(seq, length)
        available = self.pool.available()
        if needed > available:
            raise OutOfBlocks(needed, available)
        for seq, length in zip(seqs, num_tokens, strict=True):
            self.reserve(seq, length)

    def advance_many(
        self, seqs: Sequence[int], tokens: Sequence[int], counts: Sequence[int]
    ) -> None:
        self._check_seqs(seqs, "counts", counts)
        if sum(counts) != len(tokens):
            raise RequestError("counts", "do not add up to the tokens")
        checked_tokens("tokens", tokens)
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        parts = [tokens[end - count : end] for end, count in zip(ends, counts, strict=True)]
        for seq, count in zip(seqs, counts, strict=True):
            if self.alive[seq].computed + count > self.alive[seq].reserved:
                raise StateError("advance beyond a reservation")
        for seq, part in zip(seqs, parts, strict=True):
            self.advance(seq, part)

    def close_many(self, seqs: Sequence[int]) -> None:
        self._check_seqs(seqs, "seqs", seqs)
        for seq in seqs:
            self.close(seq)

    # --- pins and epochs ---------------------------------------------------------------------

    def pin(self, tokens: Sequence[int], **options: Any) -> int:
        return self.pins.pin(tokens, **options)

    def unpin(self, pin: int) -> None:
        self.pins.unpin(pin)

    def new_epoch(self) -> None:
        self.epoch += 1
        self.pool.new_epoch()

    # --- arrays ------------------------------------------------------------------------------

    def table(self, seq: int) -> list[int]:
        return list(self._sequence(seq).table)

    def tables(
        self, seqs: Sequence[int], out: Sequence[Sequence[int]] | None = None
    ) -> list[list[int]]:
        """The tables as a matrix, or what `out`, given as its rows, holds after the call."""
        tables = [self.table(seq) for seq in seqs]
        width = max(map(len, tables), default=0)
        if out is not None:
            columns = len(out[0]) if out else 0
            if len(out) < len(tables) or columns < width:
                raise RequestError("out", "is too small")
            tables += [[] for _ in range(len(out) - len(tables))]
            width = columns
        return [table + [0] * (width - len(table)) for table in tables]

    def csr(
        self, seqs: Sequence[int], lens: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        self._check_ranges(seqs, [0] * len(seqs), lens)
        indptr, indices, last_page_len = [0], list[int](), list[int]()
        for seq, length in zip(seqs, lens, strict=True):
            num_blocks = _ceil(length, self.block_size)
            indices += self.alive[seq].table[:num_blocks]
            indptr.append(len(indices))
            last_page_len.append(length - (num_blocks - 1) * self.block_size if length else 0)
        return indptr, indices, last_page_len

    def slots(self, seqs: Sequence[int], starts: Sequence[int], lens: Sequence[int]) -> list[int]:
        self._check_ranges(seqs, starts, lens)
        return [
            self.alive[seq].table[position // self.block_size] * self.block_size
            + position % self.block_size
            for seq, start, length in zip(seqs, starts, lens, strict=True)
            for position in range(start, start + length)
        ]

    def take_ops(self) -> list[tuple[int, int, int]]:
        return [(copy.source, copy.target, copy.num_tokens) for copy in self.pool.take_copies()]

    # --- the whole ---------------------------------------------------------------------------

    def begin_step(self) -> int:
        self.pins.pass_step()
        return self.pool.begin_step()

    def end_step(self, step: int) -> None:
        self.pool.end_step(step)

    def clear(self) -> bool:
        return self.pool.clear()

    def stats(self) -> dict[str, int]:
        return pool_stats(self.pool) | {
            "sequences": len(self.alive),
            "open_steps": len(self.pool.open_steps),
            "prefix_queries": self.prefix_queries,
            "prefix_hits": self.prefix_hits,
        }

    def draw(self, order: Sequence[int] | None = None) -> str:
        """The picture; `order` is that of the real handles' slots, which the twin has not."""
        named = [self.alive[seq] for seq in (self.alive if order is None else order)]
        return draw(self.pool, [(sequence.computed, sequence.table) for sequence in named])

    def audit(self) -> None:
        check_pool(self.pool, self.alive.values(), self.pins.blocks())
        for sequence in self.alive.values():
            assert sequence.computed <= sequence.reserved
            assert len(sequence.table) == _ceil(sequence.reserved, self.block_size)
            self._check_contents(sequence)

    # --- within ------------------------------------------------------------------------------

    def _issue(self, sequence: _Sequence) -> int:
        self.num_issued += 1
        self.alive[self.num_issued] = sequence
        return self.num_issued

    def _check_seqs(self, seqs: Sequence[int], name: str, values: Sequence[int]) -> None:
        for seq in seqs:
            self._sequence(seq)
        if len(set(seqs)) < len(seqs):
            raise RequestError("seqs", "names a sequence twice")
        if len(values) != len(seqs):
            raise RequestError(name, "has another length than seqs")

    def _sequence(self, seq: int) -> _Sequence:
        if seq in self.alive:
            return self.alive[seq]
        if 1 <= seq <= self.num_issued:
            raise StaleHandleError(seq)
        raise UnknownHandleError(seq)

    def _hit(self, identity: Identity, prompt: list[int]) -> list[int]:
        if not self.prefix_caching or not prompt:
            return []
        limit = (len(prompt) - 1) // self.block_size
        return self.pool.longest_hit(identity, prompt, limit)

    def _blocks_needed(self, sequence: _Sequence, num_tokens: int) -> int:
        if num_tokens < 0:
            raise RequestError("num_tokens", "is negative")
        if num_tokens <= sequence.reserved:
            return 0
        new = _ceil(num_tokens, self.block_size) - len(sequence.table)
        tail = sequence.tail_to_copy(self.pool, sequence.computed)
        if tail is None:
            return new
        self.pool.source_of_copy(sequence.table[tail], sequence.computed % self.block_size)
        return new + 1

    def _void_reservation(self, sequence: _Sequence) -> None:
        keep = _ceil(sequence.computed, self.block_size)
        sequence.release(self.pool, keep)
        sequence.reserved = sequence.computed

    def _check_ranges(
        self, seqs: Sequence[int], starts: Sequence[int], lens: Sequence[int]
    ) -> None:
        sequences = [self._sequence(seq) for seq in seqs]
        if not len(seqs) == len(starts) == len(lens):
            raise RequestError("lens", "has another length than seqs")
        for sequence, start, length in zip(sequences, starts, lens, strict=True):
            if start < 0 or length < 0:
                raise RequestError("starts" if start < 0 else "lens", "is negative")
            if start + length > sequence.reserved:
                raise StateError("beyond the reservation")

    def _check_contents(self, sequence: _Sequence) -> None:
        """L3 and L5: every block that a table shares holds the sequence's own history."""
        for index in range(_ceil(sequence.computed, self.block_size)):
            history = self.pool.blocks[sequence.table[index]].history
            if history is None:
                continue
            end = (index + 1) * self.block_size
            known = sequence.tokens[:end]
            assert list(history.tokens[: len(known)]) == known, "L5"
            assert history.keys == sequence.identity.history([], index + 1, self.block_size).keys
            assert history.salt == sequence.identity.salt, "L5"
        if sequence.reserved > sequence.computed:
            first_written = sequence.computed // self.block_size
            for number in sequence.table[first_written:]:
                assert self.pool.blocks[number].tables == 1, "L3: one writer"
                assert self.pool.blocks[number].history is None, "L3: not findable"


def pool_stats(pool: NaivePool) -> dict[str, int]:
    return {
        "num_blocks": pool.num_blocks,
        "usable": pool.usable(),
        "blank": pool.num_blank(),
        "cached": len(pool.recency),
        "held": sum(block.count > 0 for block in pool.blocks.values()),
        "fenced": len(pool.fenced),
        "available": pool.available(),
        "guarded": len(pool.recency) - len(pool.evictable()),
        "published_blocks": pool.published_blocks,
        "merged_blocks": pool.merged_blocks,
        "evicted_blocks": pool.evicted_blocks,
        "copies": pool.copies_made,
    }


def _ceil(amount: int, size: int) -> int:
    return -(-amount // size)

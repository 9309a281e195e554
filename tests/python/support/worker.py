"""A worker that runs plans in order over a simulated KV memory, and believes nothing.

What a slot holds is a digest of the whole history up to it. Before a plan writes, every position
that its sequences have behind them must hold exactly the history of that sequence: whatever was
forked, copied, merged, preempted, ended late or cancelled in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.replay import TableMirror
from support.views import as_list

if TYPE_CHECKING:
    from support.truth import Truth


@dataclass(frozen=True)
class _Row:
    """One sequence of a plan: its part of the flat arrays, and the slots of all its positions."""

    seq: int
    first: int
    start: int
    length: int
    slots: list[int]


class Worker:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory: dict[int, int] = {}
        self.mirror = TableMirror()
        self.truths: dict[int, Truth] = {}
        self.samples: dict[int, list[int]] = {}  # of every plan

    def run(self, plan: Any) -> list[int]:
        """Runs a plan. Returns the tokens that it samples."""
        self.mirror.apply(plan)
        self._copy(as_list(plan.copies))
        rows = rows_of(plan, self.mirror, self.block_size)
        for row in rows:
            self._check_reads(row)
        tokens = self._tokens(plan)
        digests: list[int] = []
        for row in rows:
            digests += self._write(row, tokens)
        self.samples[plan.number] = self._sample(plan, digests)
        return self.samples[plan.number]

    def skip(self, plan: Any) -> None:
        """Does not run a plan that is cancelled; what it told of tables stays in force."""
        self.mirror.apply(plan)

    def _copy(self, copies: list[list[int]]) -> None:
        targets = {target for _, target, _ in copies}
        assert len(targets) == len(copies), "no block is the target of two copies"
        assert targets.isdisjoint(source for source, _, _ in copies), "no chains"
        for source, target, num_tokens in copies:
            assert 0 < num_tokens < self.block_size
            for offset in range(num_tokens):
                read = self.memory[source * self.block_size + offset]
                self.memory[target * self.block_size + offset] = read

    def _check_reads(self, row: _Row) -> None:
        truth = self.truths[row.seq]
        for position in range(row.start):
            held = self.memory.get(row.slots[position])
            assert held == truth.digest(position), f"position {position} of {row.seq}"

    def _tokens(self, plan: Any) -> list[int]:
        """The plan's tokens, those not yet known taken from the plans that sampled them."""
        tokens = as_list(plan.token_ids)
        sources = as_list(plan.token_source)
        assert sources == sorted(sources), "token_source is in the order of T"
        for index, number, place in sources:
            assert tokens[index] == 0
            tokens[index] = self.samples[number][place]
        return tokens

    def _write(self, row: _Row, tokens: list[int]) -> list[int]:
        truth = self.truths[row.seq]
        digests: list[int] = []
        for position in range(row.start, row.length):
            token = tokens[row.first + position - row.start]
            assert token == truth.token(position), f"token {position} of {row.seq}"
            before = self.memory[row.slots[position - 1]] if position else truth.start
            digests.append(truth.digest_after(before, token, position))
            self.memory[row.slots[position]] = digests[-1]
        return digests

    def _sample(self, plan: Any, digests: list[int]) -> list[int]:
        places, seqs = as_list(plan.sample), as_list(plan.sample_seqs)
        assert as_list(plan.sample_indptr) == list(range(len(seqs) + 1))
        sampled: list[int] = []
        for index, seq in zip(places, seqs, strict=True):
            sampled.append(self.truths[seq].next_token(digests[index]))
            position = as_list(plan.positions)[index]
            assert sampled[-1] == self.truths[seq].token(position + 1)
        return sampled


class Fences:
    """L7: nothing that a plan out reads or writes is written by a later one for somebody else."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.touched: dict[int, set[tuple[int, int]]] = {}  # by plan: slot and sequence

    def observe(self, plan: Any, mirror: TableMirror) -> None:
        """`plan` was returned, and `mirror` knows it."""
        rows = rows_of(plan, mirror, self.block_size)
        before = [pair for touched in self.touched.values() for pair in touched]
        copies = as_list(plan.copies)
        copied = {slot for _, target, length in copies for slot in self._span(target, length)}
        assert copied.isdisjoint(slot for slot, _ in before), "L7: a copy over what is in use"
        for row in rows:
            others = {slot for slot, seq in before if seq != row.seq}
            assert others.isdisjoint(row.slots[row.start :]), "L7: a write over what is in use"
        touched = {(slot, row.seq) for row in rows for slot in row.slots}
        read = {slot for source, _, length in copies for slot in self._span(source, length)}
        self.touched[plan.number] = touched | {(slot, 0) for slot in read | copied}

    def forget(self, number: int) -> None:
        self.touched.pop(number, None)

    def _span(self, block: int, length: int) -> range:
        return range(block * self.block_size, block * self.block_size + length)


def rows_of(plan: Any, mirror: TableMirror, block_size: int) -> list[_Row]:
    """The rows of a plan, its slots checked against the tables that a worker knows."""
    starts, positions = as_list(plan.query_start), as_list(plan.positions)
    slot_mapping, lengths = as_list(plan.slot_mapping), as_list(plan.seq_lens)
    rows: list[_Row] = []
    for place, (seq, row) in enumerate(zip(as_list(plan.seqs), as_list(plan.rows), strict=True)):
        first, past, length = starts[place], starts[place + 1], lengths[place]
        start = length - (past - first)
        table = mirror.row(row, -(-length // block_size))
        slots = [table[at // block_size] * block_size + at % block_size for at in range(length)]
        assert positions[first:past] == list(range(start, length))
        assert slot_mapping[first:past] == slots[start:]
        rows.append(_Row(seq, first, start, length, slots))
    return rows

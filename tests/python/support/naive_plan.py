"""What the naive scheduler hands out: plans and outcomes as plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo import Reason
    from support.naive_sequence import NaiveSequence


@dataclass(eq=False)
class Placed:
    """A row of a plan."""

    sequence: NaiveSequence  # after a hand-over the new leader
    start: int
    num_tokens: int
    is_decode: bool
    is_newly_given: bool
    is_complete: bool  # after it all is computed that is known, or pending
    samplers: list[NaiveSequence] = field(default_factory=list)

    @property
    def past(self) -> int:
        return self.start + self.num_tokens


@dataclass(eq=False)
class NaivePlan:
    """One step; the names are those of the contract."""

    number: int
    seqs: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    num_decodes: int = 0
    num_padded: int = 0
    num_tokens: list[int] = field(default_factory=list)
    query_start: list[int] = field(default_factory=lambda: [0])
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slot_mapping: list[int] = field(default_factory=list)
    token_source: list[list[int]] = field(default_factory=list)
    seq_lens: list[int] = field(default_factory=list)
    sample: list[int] = field(default_factory=list)
    sample_seqs: list[int] = field(default_factory=list)
    sample_indptr: list[int] = field(default_factory=lambda: [0])
    table_changes: list[list[int]] = field(default_factory=list)
    copies: list[list[int]] = field(default_factory=list)
    zero: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    kv_indptr: list[int] = field(default_factory=lambda: [0])
    kv_indices: list[int] = field(default_factory=list)
    kv_last_page_len: list[int] = field(default_factory=list)
    # What the scheduler remembers beside.
    placed: list[Placed] = field(default_factory=list)
    step: int = 0

    def append(self, placed: Placed, source: tuple[int, int] | None, block_size: int) -> None:
        """Writes one row's part of the flat arrays.

        `source`: the plan and the index in its `sample` that a token not yet known comes from.
        """
        sequence = placed.sequence
        assert sequence.row is not None
        self.placed.append(placed)
        self.seqs.append(sequence.handle)
        self.rows.append(sequence.row)
        self.num_decodes += placed.is_decode
        self.num_tokens.append(placed.num_tokens)
        for position in range(placed.start, placed.past):
            if position < len(sequence.known):
                self.token_ids.append(sequence.known[position])
            else:
                assert source is not None
                self.token_source.append([len(self.token_ids), *source])
                self.token_ids.append(0)
            self.positions.append(position)
            block = sequence.table[position // block_size]
            self.slot_mapping.append(block * block_size + position % block_size)
        self.query_start.append(len(self.token_ids))
        self.seq_lens.append(placed.past)
        for sampler in placed.samplers:
            self.sample.append(len(self.token_ids) - 1)
            self.sample_seqs.append(sampler.handle)
            self.sample_indptr.append(len(self.sample))
        num_blocks = -(-placed.past // block_size)
        self.kv_indices += sequence.table[:num_blocks]
        self.kv_indptr.append(len(self.kv_indices))
        self.kv_last_page_len.append(placed.past - (num_blocks - 1) * block_size)


@dataclass(eq=False)
class NaiveOutcome:
    seqs: list[int] = field(default_factory=list)
    indptr: list[int] = field(default_factory=lambda: [0])
    tokens: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

"""What the naive scheduler hands out: plans and outcomes as plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo import Reason
    from support.naive_request import NaiveRequest


@dataclass(eq=False)
class Placed:
    """A row of a plan under construction."""

    request: NaiveRequest
    num_tokens: int
    is_decode: bool
    newly_given: bool

    @property
    def completes(self) -> bool:
        """Whether this plan computes the last token that is known."""
        return self.request.computed + self.num_tokens == len(self.request.known)

    @property
    def samples(self) -> bool:
        return self.completes and self.request.max_tokens > 0


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

    def append(self, placed: Placed, block_size: int) -> None:
        """Writes one row's part of the flat arrays."""
        request = placed.request
        start, past = request.computed, request.computed + placed.num_tokens
        assert request.row is not None
        self.seqs.append(request.seq)
        self.rows.append(request.row)
        self.num_decodes += placed.is_decode
        self.num_tokens.append(placed.num_tokens)
        for position in range(start, past):
            self.token_ids.append(request.known[position])
            self.positions.append(position)
            block = request.table[position // block_size]
            self.slot_mapping.append(block * block_size + position % block_size)
        self.query_start.append(len(self.token_ids))
        self.seq_lens.append(past)
        if placed.samples:
            self.sample.append(len(self.token_ids) - 1)
            self.sample_seqs.append(request.seq)
            self.sample_indptr.append(len(self.sample))
        num_blocks = -(-past // block_size)
        self.kv_indices += request.table[:num_blocks]
        self.kv_indptr.append(len(self.kv_indices))
        self.kv_last_page_len.append(past - (num_blocks - 1) * block_size)


@dataclass(eq=False)
class NaiveOutcome:
    seqs: list[int] = field(default_factory=list)
    indptr: list[int] = field(default_factory=lambda: [0])
    tokens: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

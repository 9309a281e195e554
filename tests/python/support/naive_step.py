"""The phases of one step of the naive scheduler that place what runs: decodes and prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.naive_plan import Placed

if TYPE_CHECKING:
    from support.naive_sequence import NaiveSequence
    from support.naive_state import NaiveState


class NaiveStep:
    def __init__(self, state: NaiveState) -> None:
        self.state = state
        self.pool = state.pool
        self.block_size = state.block_size
        self.budget = state.max_num_batched_tokens
        self.placed: list[Placed] = []
        self.copied: list[tuple[NaiveSequence, int]] = []  # entries that a copy replaced
        self.preempted: list[NaiveSequence] = []
        self.num_waiting_for_blocks = 0
        self.holds = False  # a whole prompt in progress found too little budget
        self.decodes = [one for one in state.in_order() if state.is_decode(one)]
        self.prompts = [one for one in state.in_order() if state.is_prompt(one)]
        self.cap = self._cap()

    def _cap(self) -> int | None:
        others_wait = len(self.prompts) + len(self.state.waiting) >= 2
        threshold = self.state.long_prefill_threshold
        is_capped = self.state.batching == "chunked" and threshold > 0 and others_wait
        return threshold if is_capped else None

    def place_decodes(self) -> None:
        for sequence in list(self.decodes):
            if sequence.row is not None and self.budget > 0:
                self._place_decode(sequence)

    def place_prompts(self) -> None:
        """Those in progress, as much of each as there is room for."""
        for sequence in list(self.prompts):
            if sequence.row is not None and self.budget > 0:
                self._place_chunk(sequence)

    def place_whole_prompts(self, limit: int | None = None) -> None:
        """Those in progress under the other batchings: each whole, or not at all."""
        for sequence in self.prompts[:limit]:
            if sequence.row is None:
                continue
            if self.state.lacking(sequence) <= self.budget:
                self._place_whole(sequence)
            else:
                self.holds = True

    # --- one row -----------------------------------------------------------------------------

    def _place_decode(self, sequence: NaiveSequence) -> None:
        while self.pool.available() < self.needs_block(sequence):
            if not self._make_room_for(sequence):
                return
        self._place(sequence, 1, is_decode=True)

    def needs_block(self, sequence: NaiveSequence) -> bool:
        """Whether its next token needs a block: a new one, or a tail of its own."""
        at_boundary = sequence.scheduled == len(sequence.table) * self.block_size
        return at_boundary or sequence.tail_to_copy(self.pool, sequence.scheduled) is not None

    def _place_chunk(self, sequence: NaiveSequence) -> None:
        if self.state.limits.worst_case:
            self._place_whole(sequence)
            return
        while True:
            slots = (len(sequence.table) + self.pool.available()) * self.block_size
            chunk = self.chunk_of(sequence, sequence.scheduled)
            chunk = min(chunk, slots - sequence.scheduled)
            if chunk > 0:
                break
            if not self._make_room_for(sequence):
                return
        self._place(sequence, chunk)

    def _place_whole(self, sequence: NaiveSequence) -> None:
        """With all blocks that it lacks."""
        while self.pool.available() < self.state.blocks_lacking(sequence):
            if not self._make_room_for(sequence):
                return
        self._place(sequence, self.chunk_of(sequence, sequence.scheduled))

    def chunk_of(self, sequence: NaiveSequence, start: int) -> int:
        chunk = min(self.state.expected(sequence) - start, self.budget)
        return chunk if self.cap is None else min(chunk, self.cap)

    def _place(self, sequence: NaiveSequence, num_tokens: int, *, is_decode: bool = False) -> None:
        assert is_decode or sequence.tail_to_copy(self.pool, sequence.scheduled) is None
        replaced = sequence.make_tail_writable(self.pool, sequence.scheduled)
        if replaced is not None:
            self.copied.append((sequence, replaced))
        self.put_in_plan(sequence, sequence.scheduled, num_tokens, is_decode=is_decode)

    def put_in_plan(
        self,
        sequence: NaiveSequence,
        start: int,
        num_tokens: int,
        *,
        is_decode: bool = False,
        is_newly_given: bool = False,
    ) -> None:
        past = start + num_tokens
        num_blocks = -(-past // self.block_size)
        if self.state.limits.worst_case and not is_decode:
            num_blocks = max(num_blocks, self.state.blocks_for_all_of(sequence))
        new = max(0, num_blocks - len(sequence.table))
        assert new <= self.pool.available()
        sequence.table += self.pool.allocate(new)
        self.budget -= num_tokens
        is_complete = past == self.state.expected(sequence)
        placed = Placed(sequence, start, num_tokens, is_decode, is_newly_given, is_complete)
        if is_complete and sequence.family.max_tokens > 0:
            placed.samplers = self.state.members_in_rows(sequence)
        self.placed.append(placed)

    # --- making room -------------------------------------------------------------------------

    def _make_room_for(self, requester: NaiveSequence) -> bool:
        """Whether to ask again whether there is room, or to go on without the requester."""
        if self.pool.coming() > self.num_waiting_for_blocks:
            self.num_waiting_for_blocks += 1
            return False
        victim = self._victim(requester)
        if victim is not requester:
            self.preempt(victim)
            return True
        if len(self.state.running) > 1:
            self.preempt(requester)
            return False
        if requester.twins:
            requester.give_up_twins(self.pool)
            requester.epoch = None
            return True
        if not self.state.names(requester):
            self.state.end_for_capacity(requester)
        return False

    def _victim(self, requester: NaiveSequence) -> NaiveSequence:
        order = self.state.in_order()
        candidates = order[order.index(requester) :]
        last_first = candidates[::-1]  # of equals the later one goes
        if self.state.victim == "least_computed":
            return min(last_first, key=lambda sequence: sequence.computed)
        if self.state.victim == "lowest_class":
            return max(last_first, key=self.state.class_of)
        return last_first[0]

    def preempt(self, victim: NaiveSequence) -> None:
        for placed in [placed for placed in self.placed if placed.sequence is victim]:
            self.placed.remove(placed)
            self.budget += placed.num_tokens
        self.copied = [(sequence, index) for sequence, index in self.copied if sequence != victim]
        for kind in (self.decodes, self.prompts):
            if victim in kind:
                kind.remove(victim)
        self.state.preempt(victim, within_step=True)
        self.preempted.append(victim)

"""Admissions of the naive scheduler, and the order of all phases under each kind of batching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.naive_step import NaiveStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_sequence import NaiveSequence
    from support.naive_state import NaiveState


class NaiveDecision(NaiveStep):
    def __init__(self, state: NaiveState) -> None:
        super().__init__(state)
        self.admitted: list[NaiveSequence] = []
        self.resumed: list[NaiveSequence] = []

    def decide(self) -> None:
        if self.state.batching == "chunked":
            self.place_decodes()
            self.place_prompts()
            self._admit_all()
        elif self.state.batching == "mixed":
            self.place_decodes()
            self.place_whole_prompts()
            if not self.holds:
                self._admit_all()
        elif self.state.batching == "continuous":
            if self.prompts:
                self.place_whole_prompts(limit=1)
            elif not self._admit_next():
                self.place_decodes()
        else:
            self._decide_static()

    def _decide_static(self) -> None:
        if self.prompts:
            self.place_whole_prompts()
        elif self.state.running or self.state.padding:
            self.place_decodes()
        elif len(self.state.free_rows()) == self.state.max_num_seqs:
            self._admit_all()

    def is_worth_a_plan(self) -> bool:
        is_told_now = bool(self.state.unreported) and not self.state.out
        return bool(self.placed or self.preempted or self.state.withdrawals or is_told_now)

    def _admit_all(self) -> None:
        while self._admit_next():
            pass

    def _admit_next(self) -> bool:
        """Admits the head of the queue; False if it has to wait."""
        if self.budget == 0 or not self.state.waiting:
            return False
        return self._admit(min(self.state.waiting, key=self.state.order_of))

    def _admit(self, sequence: NaiveSequence) -> bool:
        if self.state.names(sequence):
            return False
        hit = self._hit(sequence)
        start = len(hit) * self.block_size
        if not self._may_take(sequence, start):
            return False
        if not self._fits(sequence, hit):
            victims = self._strict_victims(sequence, hit)
            for victim in victims:
                self.preempt(victim)
            assert hit == self._hit(sequence)
            if not victims or not self._fits(sequence, hit):
                return False
        assert self._may_take(sequence, start)
        for number in hit:
            self.pool.claim(number)
        sequence.table = hit
        sequence.computed = sequence.scheduled = start
        sequence.high_water = max(sequence.high_water, start)
        sequence.epoch = self.state.epoch
        for member, row in zip(
            self.state.members_in_rows(sequence), self.state.free_rows(), strict=False
        ):
            member.row = row
        self.state.waiting.remove(sequence)
        self.state.running.append(sequence)
        self.put_in_plan(sequence, start, self.chunk_of(sequence, start), is_newly_given=True)
        self._count_admission(sequence, start)
        return True

    def _hit(self, sequence: NaiveSequence) -> list[int]:
        if not self.state.caches(sequence):
            return []
        limit = (len(sequence.known) - 1) // self.block_size
        return self.pool.longest_hit(sequence.family.identity, sequence.known, limit)

    def _may_take(self, sequence: NaiveSequence, start: int) -> bool:
        if self.chunk_of(sequence, start) == len(sequence.known) - start:
            return True
        is_chunked = self.state.batching == "chunked"
        return is_chunked and self._num_incomplete() < self.state.max_partial_prefills

    def _num_incomplete(self) -> int:
        """How many prompts this plan leaves in progress."""
        completed = [placed.sequence for placed in self.placed if placed.is_complete]
        return sum(sequence not in completed for sequence in self._prompts_in_rows())

    def _prompts_in_rows(self) -> list[NaiveSequence]:
        given = [placed.sequence for placed in self.placed if placed.is_newly_given]
        return [one for one in self.state.running if one in self.prompts or one in given]

    def _fits(self, sequence: NaiveSequence, hit: list[int]) -> bool:
        """Whether there are rows, and room for all of it, now."""
        if len(self.state.free_rows()) < len(self.state.members_in_rows(sequence)):
            return False
        leave = [number for number in hit if number in self.pool.evictable()]
        needed = self._needed(sequence, hit, self.state.running)
        return needed <= self.pool.available() - len(leave)

    def _would_fit(
        self, sequence: NaiveSequence, hit: list[int], without: Sequence[NaiveSequence] = ()
    ) -> bool:
        """The same once all plans out are committed, and those `without` whom are gone."""
        num_rows = len(self.state.free_rows()) + self.state.num_coming_rows()
        num_rows += sum(len(self.state.members_in_rows(other)) for other in without)
        if num_rows < len(self.state.members_in_rows(sequence)):
            return False
        dropped = [number for other in without for number in other.table]
        dropped += [number for other in without for _, number in other.twins]
        dropped += [copy.source for copy in self.pool.untaken() if copy.target in dropped]
        counts = {n: self.pool.blocks[n].count - dropped.count(n) for n in {*hit, *dropped}}
        num_freed = sum(counts[number] == 0 for number in set(dropped))
        num_claimed = sum(counts[number] == 0 for number in hit)
        staying = [other for other in self.state.running if other not in without]
        needed = self._needed(sequence, hit, staying)
        num_available = self.pool.available() + self.pool.coming()
        return needed <= num_available + num_freed - num_claimed

    def _needed(
        self, sequence: NaiveSequence, hit: list[int], staying: Sequence[NaiveSequence]
    ) -> int:
        rest = self.state.blocks_for_all_of(sequence) - len(hit)
        prompts = [one for one in self._prompts_in_rows() if one in staying]
        lack = sum(self.state.blocks_lacking(one) for one in prompts)
        if self.state.batching == "continuous" and self.state.inflight_steps > 1:
            # Else a decode that is short would take the prompt's blocks while its plan is out.
            lack += sum(self.needs_block(one) for one in self.decodes if one in staying)
        return rest + lack + (self.state.watermark_blocks if staying else 0)

    def _strict_victims(self, sequence: NaiveSequence, hit: list[int]) -> list[NaiveSequence]:
        """As few of strictly worse classes behind it as it takes, last first; or none."""
        if self.state.policy not in ("priority", "edf") or self._would_fit(sequence, hit):
            return []
        limit, place = self.state.class_of(sequence), self.state.order_of(sequence)
        given = [placed.sequence for placed in self.placed if placed.is_newly_given]
        eligible = [
            other
            for other in reversed(self.state.in_order())
            if self.state.class_of(other) > limit
            and self.state.order_of(other) > place
            and other not in given
        ]
        for size in range(1, len(eligible) + 1):
            if self._would_fit(sequence, hit, without=eligible[:size]):
                return eligible[:size]
        return []

    def _count_admission(self, sequence: NaiveSequence, num_hit_tokens: int) -> None:
        kind = "resumed" if sequence.was_told else "prefix"
        if self.state.caches(sequence):
            self.state.counters[f"{kind}_queries"] += len(sequence.known)
            self.state.counters[f"{kind}_hits"] += num_hit_tokens
        (self.resumed if sequence.was_told else self.admitted).append(sequence)
        sequence.was_told = True

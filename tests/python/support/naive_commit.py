"""What the commit of a plan changes in the naive scheduler, and what `cancel` undoes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo import Reason
from octavo.errors import RequestError, StateError
from support.naive_identity import checked_tokens
from support.naive_plan import NaiveOutcome
from support.naive_state import NaiveState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_plan import NaivePlan, Placed
    from support.naive_sequence import NaiveSequence


class NaiveCommits(NaiveState):
    def commit(
        self, plan: NaivePlan, tokens: Sequence[int], counts: Sequence[int] | None = None
    ) -> NaiveOutcome:
        if not self.out or self.out[0] is not plan:
            raise StateError("this plan is not the oldest out")
        num_samples = len(plan.sample_seqs)
        if len(tokens) != num_samples:
            raise RequestError("tokens", f"has {len(tokens)} tokens for {num_samples} samples")
        sampled = checked_tokens("tokens", tokens)
        if counts is not None and list(counts) != [1] * num_samples:
            raise RequestError("counts", "is not all 1")
        self.out.pop(0)
        self.pool.end_step(plan.step)
        outcome = NaiveOutcome()
        for placed in plan.placed:
            self._compute(placed)
            self._sample(placed, [sampled.pop(0) for _ in placed.samplers], outcome)
        for placed in plan.placed:
            for sequence in placed.samplers or [placed.sequence]:
                self._end_if_too_long(sequence)
        outcome.finished = [sequence.handle for sequence, _ in self.unreported]
        outcome.reasons = [reason for _, reason in self.unreported]
        for sequence, _ in self.unreported:
            sequence.is_reported = sequence.reason is not None  # else it was extended
        self.unreported = []
        return outcome

    def _compute(self, placed: Placed) -> None:
        sequence = placed.sequence
        self.counters["scheduled_tokens"] += placed.num_tokens
        if sequence.row is None and sequence.reason is not None:
            return
        past = min(placed.past, len(sequence.known))
        recomputed = min(sequence.high_water, past) - placed.start
        self.counters["recomputed_tokens"] += max(0, recomputed)
        sequence.high_water = max(sequence.high_water, past)
        if sequence.row is None:
            return
        full_before = sequence.computed // self.block_size
        sequence.computed = max(sequence.computed, past)
        if self.publishes(sequence):
            replaced = sequence.publish(
                self.pool,
                sequence.family.identity,
                sequence.known,
                range(full_before, sequence.computed // self.block_size),
                dedupe=self.dedupe,
            )
            self.merges += [(sequence, index) for index in replaced]

    def _sample(self, placed: Placed, tokens: list[int], outcome: NaiveOutcome) -> None:
        leader, family = placed.sequence, placed.sequence.family
        if not placed.samplers:
            is_done = leader.row is not None and leader.computed == len(leader.known)
            if family.max_tokens == 0 and is_done and leader.reason is None:
                for member in self.members_in_rows(leader):
                    self.end(member, Reason.LENGTH)
            return
        was_forked, family.is_forked = family.is_forked, True
        for member, token in zip(placed.samplers, tokens, strict=True):
            if member.reason is not None:
                continue
            if member is not leader and not was_forked:
                self._fork(leader, member)
            self._accept(member, token, outcome)

    def _fork(self, leader: NaiveSequence, member: NaiveSequence) -> None:
        member.join(leader)
        if leader.row is None:
            self.waiting.append(member)
            return
        leader.share_with(member, self.pool)
        self.running.append(member)
        self.arrive(member)

    def _accept(self, sequence: NaiveSequence, token: int, outcome: NaiveOutcome) -> None:
        family = sequence.family
        sequence.known.append(token)
        sequence.emitted += 1
        outcome.seqs.append(sequence.handle)
        outcome.tokens.append(token)
        outcome.indptr.append(len(outcome.tokens))
        if token in family.stop_token_ids and sequence.emitted >= family.min_tokens:
            self.end(sequence, Reason.STOP)
        elif len(sequence.known) == self.max_len(sequence):
            self.end(sequence, Reason.LENGTH)

    def _end_if_too_long(self, sequence: NaiveSequence) -> None:
        """The test that preemption left to the last plan that names it."""
        waits = sequence in self.waiting and sequence.reason is None
        if waits and self.is_too_long(sequence) and not self.names(sequence):
            self.end(sequence, Reason.CAPACITY)

    def cancel(self, plan: NaivePlan) -> None:
        if plan not in self.out:
            raise StateError("this plan is not out")
        since = self.out.index(plan)
        void, self.out = self.out[since:], self.out[:since]
        for placed in [placed for one in void for placed in one.placed]:
            sequence = placed.sequence
            if sequence in self.running and sequence.reason is None:
                self.preempt(sequence, within_step=False)
                self.withdrawals.append(sequence.handle)
        self.pool.void_steps([one.step for one in void])

"""What the naive scheduler knows, and the few things that may happen to a sequence of it."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

from octavo import Reason
from support.naive_pins import NaivePins
from support.naive_pool import NaivePool
from support.naive_request import Limits

if TYPE_CHECKING:
    from support.naive_plan import NaivePlan
    from support.naive_request import NaiveRequest
    from support.naive_sequence import NaiveSequence

COUNTERS = (
    "steps",
    "scheduled_tokens",
    "preemptions",
    "recomputed_tokens",
    "finished",
    "prefix_queries",
    "prefix_hits",
    "resumed_queries",
    "resumed_hits",
)


class NaiveState:
    """Until the fork of a request only its leader is among the running and the waiting."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2_048,
        max_model_len: int = 32_768,
        batching: str = "chunked",
        policy: str = "fcfs",
        aging: float = 0.0,
        max_partial_prefills: int = 4,
        long_prefill_threshold: int = 0,
        watermark: float = 0.01,
        reserve: str = "on_demand",
        victim: str = "latest",
        inflight_steps: int = 1,
        prefix_caching: bool = True,
        dedupe: bool = True,
        reserve_null_block: bool = False,
    ) -> None:
        self.pool = NaivePool(num_blocks, block_size, first=int(reserve_null_block))
        self.pins = NaivePins(self.pool, prefix_caching=prefix_caching)
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.batching = batching
        self.policy = policy
        self.aging = aging
        self.victim = victim
        self.max_partial_prefills = max_partial_prefills
        self.long_prefill_threshold = long_prefill_threshold
        self.watermark_blocks = math.floor(watermark * self.pool.usable())
        self.inflight_steps = inflight_steps
        self.prefix_caching = prefix_caching
        self.dedupe = dedupe
        worst_case = reserve == "worst_case"
        self.limits = Limits(
            block_size, self.pool.usable(), max_num_seqs, max_model_len, worst_case
        )
        self.requests: list[NaiveRequest] = []  # in the order of add, until they are stale
        self.running: list[NaiveSequence] = []
        self.waiting: list[NaiveSequence] = []
        self.not_ready: list[NaiveSequence] = []
        self.padding: list[int] = []  # rows of finished members of the static batch that runs
        self.unreported: list[tuple[NaiveSequence, Reason]] = []  # ends that no outcome told
        self.unapplied: list[NaiveSequence] = []  # ended, and still holding rows or places
        self.unlisted: list[int] = []  # applied ends for the next plan's `ended`
        self.arrivals: list[int] = []  # forked or handed a row, for the next plan's `admitted`
        self.withdrawals: list[int] = []  # by `cancel`, for the next plan's `preempted`
        self.merges: list[tuple[NaiveSequence, int]] = []
        self.out: list[NaivePlan] = []
        self.epoch = 0
        self.handles = count(1)
        self.kinds: dict[int, str] = {}  # of every handle that was ever given
        self.num_added = 0
        self.now: float | None = None
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.block_tables = self.current_tables()

    # --- what a sequence is to the plans out -------------------------------------------------

    def names(self, sequence: NaiveSequence) -> bool:
        """Whether a plan out has a row of it."""
        return any(placed.sequence is sequence for plan in self.out for placed in plan.placed)

    def pending(self, sequence: NaiveSequence) -> int:
        """Its tokens that plans out sample."""
        samplers = [s for plan in self.out for placed in plan.placed for s in placed.samplers]
        return sum(sampler is sequence for sampler in samplers)

    def last_sample(self, sequence: NaiveSequence) -> tuple[int, int] | None:
        """The newest plan out that samples it, and where in that plan's `sample`."""
        for plan in reversed(self.out):
            if sequence.handle in plan.sample_seqs:
                return plan.number, plan.sample_seqs.index(sequence.handle)
        return None

    def expected(self, sequence: NaiveSequence) -> int:
        return len(sequence.known) + self.pending(sequence)

    def lacking(self, sequence: NaiveSequence) -> int:
        return self.expected(sequence) - sequence.scheduled

    def max_len(self, sequence: NaiveSequence) -> int:
        family = sequence.family
        return min(family.num_prompt_tokens + family.max_tokens, self.max_model_len)

    def is_generating(self, sequence: NaiveSequence) -> bool:
        """Whether it lacks nothing but its newest token."""
        has_emitted = sequence.emitted + self.pending(sequence) > 0
        return has_emitted and self.lacking(sequence) == 1

    def is_decode(self, sequence: NaiveSequence) -> bool:
        may_grow = self.expected(sequence) < self.max_len(sequence)
        waits_for_fork = not sequence.family.is_forked and self.pending(sequence) > 0
        return self.is_generating(sequence) and may_grow and not waits_for_fork

    def is_prompt(self, sequence: NaiveSequence) -> bool:
        return not self.is_generating(sequence) and self.lacking(sequence) > 0

    # --- order, blocks, rows -----------------------------------------------------------------

    def order_of(self, sequence: NaiveSequence) -> tuple[float, float, int, int]:
        family = sequence.family
        assert family.arrival is not None
        own = self.class_of(sequence)
        key = own if math.isinf(own) else own + self.aging * family.arrival
        return key, family.arrival, family.order, sequence.index

    def class_of(self, sequence: NaiveSequence) -> float:
        return sequence.class_under(self.policy)

    def in_order(self) -> list[NaiveSequence]:
        return sorted(self.running, key=self.order_of)

    def blocks_for_all_of(self, sequence: NaiveSequence) -> int:
        """The blocks that an admission finds for all that it knows, or may know."""
        family = sequence.family
        worst = self.limits.worst_blocks(family.num_prompt_tokens, family.max_tokens)
        return max(-(-len(sequence.known) // self.block_size), worst)

    def blocks_lacking(self, sequence: NaiveSequence) -> int:
        return max(0, self.blocks_for_all_of(sequence) - len(sequence.table))

    def is_too_long(self, sequence: NaiveSequence) -> bool:
        return -(-len(sequence.known) // self.block_size) > self.pool.usable()

    def members_in_rows(self, sequence: NaiveSequence) -> list[NaiveSequence]:
        """It, and the followers for whom it stands."""
        return [sequence] if sequence.family.is_forked else sequence.family.alive()

    def rows_in_use(self) -> list[int]:
        holders = [member for one in self.running for member in self.members_in_rows(one)]
        holders += [ended for ended in self.unapplied if ended not in holders]
        return self.padding + [holder.row for holder in holders if holder.row is not None]

    def rows_named(self) -> set[int]:
        return {row for plan in self.out for row in plan.rows}

    def free_rows(self) -> list[int]:
        taken = self.rows_named().union(self.rows_in_use())
        return [row for row in range(self.max_num_seqs) if row not in taken]

    def num_coming_rows(self) -> int:
        """Rows that are vacated, and free once the plans that name them are committed."""
        return len(self.rows_named().difference(self.rows_in_use()))

    def current_tables(self) -> list[list[int]]:
        width = -(-self.max_model_len // self.block_size)
        tables = [[0] * width for _ in range(self.max_num_seqs)]
        for sequence in self.running:
            tables[row_of(sequence)][: len(sequence.table)] = sequence.table
        return tables

    def publishes(self, sequence: NaiveSequence) -> bool:
        return self.caches(sequence) and sequence.epoch == self.epoch

    def caches(self, sequence: NaiveSequence) -> bool:
        return self.prefix_caching and sequence.family.use_cache

    # --- what happens to one -----------------------------------------------------------------

    def leave_row(self, sequence: NaiveSequence) -> None:
        for member in self.members_in_rows(sequence):
            member.row = None
        sequence.row = None
        sequence.release(self.pool)
        sequence.computed = sequence.scheduled = sequence.num_told = 0
        self.running.remove(sequence)

    def preempt(self, victim: NaiveSequence, *, within_step: bool) -> None:
        self.leave_row(victim)
        self.counters["preemptions"] += 1
        if self.is_too_long(victim) and not self.names(victim):
            self.end(victim, Reason.CAPACITY, is_applied=within_step)
        else:
            victim.queued_with = len(victim.known)
            self.waiting.append(victim)

    def end_for_capacity(self, sequence: NaiveSequence) -> None:
        """The end of one that runs, and of those for whom it stands."""
        members = self.members_in_rows(sequence)
        self.leave_row(sequence)
        for member in members:
            self.end(member, Reason.CAPACITY, is_applied=True)

    def end(self, sequence: NaiveSequence, reason: Reason, *, is_applied: bool = False) -> None:
        sequence.reason = reason
        self.unreported.append((sequence, reason))
        self.counters["finished"] += 1
        if is_applied:
            self.unlisted.append(sequence.handle)
        else:
            self.unapplied.append(sequence)

    def apply_ends(self) -> None:
        for sequence in self.unapplied:
            row = sequence.row
            if sequence in self.running:
                self.leave_row(sequence)
            for queue in (self.waiting, self.not_ready):
                if sequence in queue:
                    queue.remove(sequence)
            sequence.row = None
            if row is not None and self.batching == "static":
                self.padding.append(row)
            self.unlisted.append(sequence.handle)
        self.unapplied = []
        if not self.running:
            self.padding = []

    def arrive(self, sequence: NaiveSequence) -> None:
        """It runs without an admission: the next plan says so."""
        sequence.was_told = True
        self.arrivals.append(sequence.handle)

    def hand_over(self, leader: NaiveSequence, heir: NaiveSequence) -> None:
        """The leader of a family ends before the fork: its next member stands in its place."""
        if leader in self.running:
            self.arrive(heir)
        heir.take_over(leader)
        for queue in (self.running, self.waiting, self.not_ready):
            if leader in queue:
                queue[queue.index(leader)] = heir
        for placed in [placed for plan in self.out for placed in plan.placed]:
            if placed.sequence is leader:
                placed.sequence = heir
        self.merges = [(heir if one is leader else one, index) for one, index in self.merges]


def row_of(sequence: NaiveSequence) -> int:
    assert sequence.row is not None
    return sequence.row

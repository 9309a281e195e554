"""The phases of one step of the naive scheduler: decodes, prompts in progress, admissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo import Reason
from support.naive_plan import Placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_request import NaiveRequest
    from support.naive_scheduler import NaiveScheduler


class NaiveStep:
    def __init__(self, scheduler: NaiveScheduler) -> None:
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.block_size = scheduler.block_size
        self.budget = scheduler.max_num_batched_tokens
        self.placed: list[Placed] = []
        self.length_before: dict[int, int] = {}
        self.admitted: list[NaiveRequest] = []
        self.resumed: list[NaiveRequest] = []
        self.preempted: list[NaiveRequest] = []
        self.decodes = [r for r in self._in_order() if r.is_decode]
        self.cap = self._cap()

    def _in_order(self) -> list[NaiveRequest]:
        return sorted(self.scheduler.running, key=self.scheduler.order_of)

    def _cap(self) -> int | None:
        num_prompts = len(self.scheduler.running) - len(self.decodes)
        others_wait = num_prompts + len(self.scheduler.waiting) >= 2
        threshold = self.scheduler.long_prefill_threshold
        is_capped = self.scheduler.batching == "chunked" and threshold > 0 and others_wait
        return threshold if is_capped else None

    def decide(self) -> None:
        if self.scheduler.batching == "chunked":
            self._place_decodes()
            self._place_prompts()
            self._admit_all()
        elif self.scheduler.batching == "mixed":
            self._place_decodes()
            self._admit_all()
        elif self.scheduler.batching == "continuous":
            if not self._admit_next():
                self._place_decodes()
        elif self.scheduler.running or self.scheduler.padding:
            self._place_decodes()
        else:
            self._admit_all()

    def _place_decodes(self) -> None:
        for request in list(self.decodes):
            if request.row is not None and self.budget > 0:
                self._place_decode(request)

    def _place_prompts(self) -> None:
        for request in [r for r in self._in_order() if r not in self.decodes]:
            if request.row is not None and self.budget > 0:
                self._place_chunk(request)

    def _admit_all(self) -> None:
        while self._admit_next():
            pass

    def _admit_next(self) -> bool:
        """Admits the head of the queue; False if it has to wait."""
        if self.budget == 0 or not self.scheduler.waiting:
            return False
        return self._admit(min(self.scheduler.waiting, key=self.scheduler.order_of))

    def is_worth_a_plan(self) -> bool:
        unreported = self.scheduler.unreported
        return bool(self.placed or self.preempted or unreported)

    # --- running rows ------------------------------------------------------------------------

    def _place_decode(self, request: NaiveRequest) -> None:
        while request.computed == len(request.table) * self.block_size:
            if self.pool.available() > 0:
                break
            if not self._make_room_for(request):
                return
        self._place(request, 1, is_decode=True)

    def _place_chunk(self, request: NaiveRequest) -> None:
        while True:
            slots = (len(request.table) + self.pool.available()) * self.block_size
            chunk = min(self._chunk(request, request.computed), slots - request.computed)
            if chunk > 0:
                break
            if not self._make_room_for(request):
                return
        self._place(request, chunk, is_decode=False)

    def _chunk(self, request: NaiveRequest, computed: int) -> int:
        chunk = min(len(request.known) - computed, self.budget)
        return chunk if self.cap is None else min(chunk, self.cap)

    def _place(self, request: NaiveRequest, num_tokens: int, *, is_decode: bool) -> None:
        self.length_before[request.seq] = len(request.table)
        self._extend_table(request, request.computed + num_tokens)
        self.budget -= num_tokens
        self.placed.append(Placed(request, num_tokens, is_decode, newly_given=False))

    def _extend_table(self, request: NaiveRequest, num_tokens: int) -> None:
        new = max(0, self._blocks(num_tokens) - len(request.table))
        assert new <= self.pool.available()
        request.table += self.pool.allocate(new)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- preemption --------------------------------------------------------------------------

    def _make_room_for(self, requester: NaiveRequest) -> bool:
        """Takes one victim's blocks; False if the requester itself had to go."""
        victim = self._victim(requester)
        if victim is not requester:
            self._preempt(victim)
            return True
        if len(self.scheduler.running) == 1:
            self.scheduler.leave_row(requester)
            self.scheduler.end(requester, Reason.CAPACITY, applied=True)
        else:
            self._preempt(requester)
        return False

    def _victim(self, requester: NaiveRequest) -> NaiveRequest:
        order = self._in_order()
        candidates = order[order.index(requester) :]
        last_first = candidates[::-1]  # of equals the later one goes
        if self.scheduler.victim == "least_computed":
            return min(last_first, key=lambda request: request.computed)
        if self.scheduler.victim == "lowest_class":
            return max(last_first, key=self.scheduler.class_of)
        return last_first[0]

    def _preempt(self, victim: NaiveRequest) -> None:
        for placed in [placed for placed in self.placed if placed.request is victim]:
            self.placed.remove(placed)
            self.budget += placed.num_tokens
        if victim in self.decodes:
            self.decodes.remove(victim)
        self.scheduler.leave_row(victim)
        victim.computed = 0
        self.preempted.append(victim)
        self.scheduler.counters["preemptions"] += 1
        if self._blocks(len(victim.known)) > self.pool.num_blocks:
            self.scheduler.end(victim, Reason.CAPACITY, applied=True)
        else:
            victim.queued_with = len(victim.known)
            self.scheduler.waiting.append(victim)

    # --- admissions --------------------------------------------------------------------------

    def _free_rows(self) -> list[int]:
        taken = [request.row for request in self.scheduler.running] + self.scheduler.padding
        return [row for row in range(self.scheduler.max_num_seqs) if row not in taken]

    def _admit(self, request: NaiveRequest) -> bool:
        hit = self._hit(request)
        start = len(hit) * self.block_size
        if not self._may_take(request, start):
            return False
        if not self._has_room_for(request, hit):
            victims = self._strict_victims(request, hit)
            if not victims:
                return False
            for victim in victims:
                self._preempt(victim)
        chunk = self._chunk(request, start)
        assert hit == self._hit(request)
        assert self._may_take(request, start)
        assert self._has_room_for(request, hit)
        for number in hit:
            self.pool.claim(number)
        request.table = hit
        request.computed = start
        self._extend_table(request, start + chunk)
        if self.scheduler.limits.worst_case:
            target = self.scheduler.blocks_for_all_of(request)
            request.table += self.pool.allocate(target - len(request.table))
        request.row = self._free_rows()[0]
        self.scheduler.waiting.remove(request)
        self.scheduler.running.append(request)
        self.budget -= chunk
        self.placed.append(Placed(request, chunk, is_decode=False, newly_given=True))
        self._count_admission(request, start)
        return True

    def _hit(self, request: NaiveRequest) -> list[int]:
        if not self.scheduler.caches(request):
            return []
        limit = (len(request.known) - 1) // self.block_size
        return self.pool.longest_hit(request.identity, request.known, limit)

    def _may_take(self, request: NaiveRequest, start: int) -> bool:
        if self._chunk(request, start) == len(request.known) - start:
            return True
        is_chunked = self.scheduler.batching == "chunked"
        return is_chunked and self._incomplete() < self.scheduler.max_partial_prefills

    def _has_room_for(
        self, request: NaiveRequest, hit: list[int], without: Sequence[NaiveRequest] = ()
    ) -> bool:
        """Whether there is a row and room for all of it, once those `without` whom are gone."""
        staying = [other for other in self.scheduler.running if other not in without]
        dropped = [number for other in without for number in other.table]
        counts = {n: self.pool.blocks[n].count - dropped.count(n) for n in {*hit, *dropped}}
        freed = sum(counts[number] == 0 for number in set(dropped))
        cached_hits = sum(counts[number] == 0 for number in hit)
        rest = self.scheduler.blocks_for_all_of(request) - len(hit)
        lack = sum(
            self.scheduler.blocks_for_all_of(other) - len(other.table)
            for other in staying
            if other not in self.decodes
        )
        watermark = self.scheduler.watermark_blocks if staying else 0
        has_row = len(self._free_rows()) + len(without) > 0
        return has_row and rest + lack + watermark <= self.pool.available() + freed - cached_hits

    def _strict_victims(self, request: NaiveRequest, hit: list[int]) -> list[NaiveRequest]:
        """As few of strictly worse classes as it takes, last first; none if all do not suffice."""
        if self.scheduler.policy not in ("priority", "edf"):
            return []
        limit = self.scheduler.class_of(request)
        eligible = [
            other
            for other in reversed(self._in_order())
            if self.scheduler.class_of(other) > limit
            and not any(placed.request is other and placed.newly_given for placed in self.placed)
        ]
        for size in range(1, len(eligible) + 1):
            if self._has_room_for(request, hit, without=eligible[:size]):
                return eligible[:size]
        return []

    def _incomplete(self) -> int:
        """How many prompts this plan leaves in progress."""
        completed = [placed.request for placed in self.placed if placed.completes]
        return sum(
            request not in self.decodes and request not in completed
            for request in self.scheduler.running
        )

    def _count_admission(self, request: NaiveRequest, num_hit_tokens: int) -> None:
        kind = "resumed" if request.was_admitted else "prefix"
        if self.scheduler.caches(request):
            self.scheduler.counters[f"{kind}_queries"] += len(request.known)
            self.scheduler.counters[f"{kind}_hits"] += num_hit_tokens
        (self.resumed if request.was_admitted else self.admitted).append(request)
        request.was_admitted = True

"""The phases of one step of the naive scheduler: decodes, prompts in progress, admissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo import Reason
from support.naive_plan import Placed

if TYPE_CHECKING:
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
        return sorted(self.scheduler.running, key=lambda request: request.key)

    def _cap(self) -> int | None:
        num_prompts = len(self.scheduler.running) - len(self.decodes)
        others_wait = num_prompts + len(self.scheduler.waiting) >= 2
        threshold = self.scheduler.long_prefill_threshold
        return threshold if threshold > 0 and others_wait else None

    def decide(self) -> None:
        prompts = [request for request in self._in_order() if request not in self.decodes]
        for request in list(self.decodes):
            if request.row is not None and self.budget > 0:
                self._place_decode(request)
        for request in prompts:
            if request.row is not None and self.budget > 0:
                self._place_chunk(request)
        while self.budget > 0 and self.scheduler.waiting and self._free_rows():
            head = min(self.scheduler.waiting, key=lambda request: request.key)
            if not self._admit(head):
                break

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
        new = self._blocks(num_tokens) - len(request.table)
        assert new <= self.pool.available()
        request.table += self.pool.allocate(new)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- preemption --------------------------------------------------------------------------

    def _make_room_for(self, requester: NaiveRequest) -> bool:
        """Takes one victim's blocks; False if the requester itself had to go."""
        victim = self._in_order()[-1]
        if victim is not requester:
            self._preempt(victim)
            return True
        if len(self.scheduler.running) == 1:
            self.scheduler.leave_row(requester)
            self.scheduler.end(requester, Reason.CAPACITY, applied=True)
        else:
            self._preempt(requester)
        return False

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
            self.scheduler.waiting.append(victim)

    # --- admissions --------------------------------------------------------------------------

    def _free_rows(self) -> list[int]:
        taken = [request.row for request in self.scheduler.running]
        return [row for row in range(self.scheduler.max_num_seqs) if row not in taken]

    def _admit(self, request: NaiveRequest) -> bool:
        num_known = len(request.known)
        hit = self._hit(request)
        start = len(hit) * self.block_size
        if not self._has_room_for(request, hit):
            return False
        chunk = self._chunk(request, start)
        stays_incomplete = chunk < num_known - start
        if stays_incomplete and self._incomplete() >= self.scheduler.max_partial_prefills:
            return False
        for number in hit:
            self.pool.claim(number)
        request.table = hit
        request.computed = start
        self._extend_table(request, start + chunk)
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

    def _has_room_for(self, request: NaiveRequest, hit: list[int]) -> bool:
        rest = self._blocks(len(request.known)) - len(hit)
        cached_hits = sum(self.pool.blocks[number].count == 0 for number in hit)
        lack = sum(
            self._blocks(len(other.known)) - len(other.table)
            for other in self.scheduler.running
            if other not in self.decodes
        )
        watermark = self.scheduler.watermark_blocks if self.scheduler.running else 0
        return rest + lack + watermark <= self.pool.available() - cached_hits

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

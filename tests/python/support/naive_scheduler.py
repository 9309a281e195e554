"""The naive twin of `octavo.Scheduler`: the calls, and what they change between two steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from octavo import Reason
from octavo.errors import RequestError, StaleHandleError, StateError, UnknownHandleError
from support.naive_admission import NaiveDecision
from support.naive_cache import pool_stats
from support.naive_commit import NaiveCommits
from support.naive_draw import draw
from support.naive_identity import checked_identity, checked_tokens
from support.naive_laws import check_pool
from support.naive_plan import NaivePlan
from support.naive_request import NaiveRequest, check_extension, checked_count, checked_request
from support.naive_state import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_sequence import NaiveSequence

# What `add_many` takes one for each prompt of.
EACH = ("max_tokens", "min_tokens", "priority", "deadline", "arrival")


class NaiveScheduler(NaiveCommits):
    """Handles are 1, 2, 3 …, a request's before its sequences', and never given twice."""

    # --- requests ----------------------------------------------------------------------------

    def add(self, prompt: Sequence[int], *, max_tokens: int, **options: Any) -> int:
        request = checked_request(self.limits, prompt, max_tokens=max_tokens, **options)
        return self._take(request)

    def add_many(self, prompts: Sequence[Any], *, max_tokens: Any, **options: Any) -> list[int]:
        options = {"max_tokens": max_tokens} | options
        for name, value in options.items():
            if name in EACH and isinstance(value, list) and len(value) != len(prompts):
                raise RequestError(name, "has another length than prompts")
        requests = []
        for i, prompt in enumerate(prompts):
            own = {
                name: value[i] if name in EACH and isinstance(value, list) else value
                for name, value in options.items()
            }
            try:
                requests.append(checked_request(self.limits, prompt, **own))
            except RequestError as error:
                raise RequestError(_plural(error.argument, i), "is refused") from error
        return [self._take(request) for request in requests]

    def _take(self, request: NaiveRequest) -> int:
        if request.arrival is None:
            request.arrival = self.now
        request.issue(self.handles, self.num_added)
        self.num_added += 1
        self.requests.append(request)
        queue = self.waiting if request.is_ready else self.not_ready
        queue.append(request.leader())
        self.kinds[request.handle] = "request"
        self.kinds |= dict.fromkeys((member.handle for member in request.members), "sequence")
        return request.handle

    def set_ready(self, request: int) -> None:
        family = self._request(request)
        leader = family.leader()
        if leader.reason is None and not family.is_ready:
            family.is_ready = True
            self.not_ready.remove(leader)
            self.waiting.append(leader)

    def sequences(self, request: int) -> list[int]:
        return [member.handle for member in self._request(request).members]

    def tokens(self, seq: int) -> list[int]:
        return list(self._sequence(seq).known)

    def abort(self, handle: int) -> None:
        self._end_from_outside(handle, Reason.ABORTED)

    def finish(self, handle: int) -> None:
        self._end_from_outside(handle, Reason.FINISHED)

    def _end_from_outside(self, handle: int, reason: Reason) -> None:
        whole = self.kinds.get(handle) == "request"
        members = self._request(handle).members if whole else [self._sequence(handle)]
        for member in members:
            if member.reason is not None:
                continue
            alive = member.family.alive()
            if not member.family.is_forked and alive[0] is member and len(alive) > 1:
                self.hand_over(member, alive[1])
            self.end(member, reason)

    def extend(self, request: int, tokens: Sequence[int], *, max_tokens: int) -> None:
        family = self._request(request)
        if family.n > 1:
            raise RequestError("request", "has more than one sequence")
        added = checked_tokens("tokens", tokens)
        if not added:
            raise RequestError("tokens", "is empty")
        checked_count("max_tokens", max_tokens)
        (sequence,) = family.members
        if sequence not in self.unapplied:
            raise StateError("the sequence has not ended, or its blocks are released")
        if self.names(sequence):
            raise StateError("a plan that is out names the sequence")
        check_extension(self.limits, len(sequence.known), added, max_tokens)
        sequence.known += added
        sequence.reason, sequence.is_reported, sequence.emitted = None, False, 0
        family.num_prompt_tokens = len(sequence.known)
        family.max_tokens, family.min_tokens = max_tokens, 0
        self.unapplied.remove(sequence)
        if sequence.row is not None:
            sequence.scheduled = sequence.computed
            return
        for queue in (self.waiting, self.not_ready):
            if sequence in queue:
                queue.remove(sequence)
        family.is_ready = True
        sequence.queued_with = len(sequence.known)
        self.waiting.append(sequence)

    def _request(self, handle: int) -> NaiveRequest:
        self._check_kind(handle, "request")
        for request in self.requests:
            if request.handle == handle:
                return request
        raise StaleHandleError(handle)

    def _sequence(self, handle: int) -> NaiveSequence:
        self._check_kind(handle, "sequence")
        for member in [member for request in self.requests for member in request.members]:
            if member.handle == handle and not member.is_forgotten:
                return member
        raise StaleHandleError(handle)

    def _check_kind(self, handle: int, kind: str) -> None:
        if self.kinds.get(handle) != kind:
            raise UnknownHandleError(handle)

    # --- steps -------------------------------------------------------------------------------

    def step(self, now: float) -> NaivePlan | None:
        if not math.isfinite(now):
            raise RequestError("now", "is not finite")
        if self.now is not None and now < self.now:
            raise RequestError("now", "goes back", self.now, self.now - now)
        self.now = now
        if len(self.out) == self.inflight_steps:
            return None
        self._forget_reported()
        for request in self.requests:
            if request.arrival is None:
                request.arrival = now
        self.pins.pass_step()
        self.apply_ends()
        decision = NaiveDecision(self)
        decision.decide()
        if decision.is_worth_a_plan():
            plan = self._fill(decision)
            self.block_tables = self.current_tables()
            return plan
        running = [row_of(sequence) for sequence in self.running]
        for row in range(self.max_num_seqs):
            if row not in running:
                self.block_tables[row] = [0] * len(self.block_tables[row])
        return None

    def _forget_reported(self) -> None:
        for member in [member for request in self.requests for member in request.members]:
            member.is_forgotten = member.is_reported
        self.requests = [
            request
            for request in self.requests
            if not all(member.is_forgotten for member in request.members)
        ]

    def _fill(self, decision: NaiveDecision) -> NaivePlan:
        plan = NaivePlan(self.counters["steps"])
        self.counters["steps"] += 1
        any_decodes = any(placed.is_decode for placed in decision.placed)
        plan.num_padded = len(self.padding) if any_decodes else 0
        for placed in decision.placed:
            plan.append(placed, self.last_sample(placed.sequence), self.block_size)
            placed.sequence.scheduled = placed.past
        plan.table_changes = self._table_changes(decision)
        admitted = [sequence.handle for sequence in decision.admitted]
        plan.admitted = list(dict.fromkeys(self.arrivals + admitted))
        plan.resumed = [sequence.handle for sequence in decision.resumed]
        plan.preempted = self.withdrawals + [victim.handle for victim in decision.preempted]
        plan.ended = self.unlisted
        self.arrivals, self.withdrawals, self.unlisted = [], [], []
        plan.step = self.pool.begin_step()
        copies = self.pool.hand_out_copies(plan.step)
        plan.copies = [[copy.source, copy.target, copy.num_tokens] for copy in copies]
        self.out.append(plan)
        return plan

    def _table_changes(self, decision: NaiveDecision) -> list[list[int]]:
        placed = [placed.sequence for placed in decision.placed]
        others = [one for one in self.in_order() if one not in placed and one.num_told == 0]
        replaced = self.merges + decision.copied
        self.merges = []
        replaced = [
            (sequence, index)
            for place, (sequence, index) in enumerate(replaced)
            if sequence in self.running
            and index < sequence.num_told
            and (sequence, index) not in replaced[place + 1 :]
        ]
        changes = [
            (sequence, index)
            for sequence in placed + others
            for index in range(sequence.num_told, len(sequence.table))
        ]
        for sequence in placed + others:
            sequence.num_told = len(sequence.table)
        return [
            [0, row_of(sequence), index, sequence.table[index]]
            for sequence, index in changes + replaced
        ]

    # --- the whole ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(
            self.out or self.unreported or any(request.alive() for request in self.requests)
        )

    def match(
        self, tokens: Sequence[int], *, salt: bytes = b"", extra_keys: Sequence[Any] = ()
    ) -> int:
        prompt = checked_tokens("tokens", tokens)
        identity = checked_identity(salt, extra_keys)
        if not self.prefix_caching or not prompt:
            return 0
        limit = (len(prompt) - 1) // self.block_size
        return len(self.pool.longest_hit(identity, prompt, limit)) * self.block_size

    def pin(self, tokens: Sequence[int], **options: Any) -> int:
        return self.pins.pin(tokens, **options)

    def unpin(self, pin: int) -> None:
        self.pins.unpin(pin)

    def clear(self) -> bool:
        return self.pool.clear()

    def new_epoch(self) -> None:
        self.epoch += 1
        self.pool.new_epoch()

    def stats(self) -> dict[str, int]:
        waiting = self.waiting + self.not_ready
        return (
            pool_stats(self.pool)
            | self.counters
            | {
                "waiting": sum(sequence.reason is None for sequence in waiting),
                "running": sum(sequence.reason is None for sequence in self.running),
                "requests": len(self.requests),
                "plans_out": len(self.out),
            }
        )

    def draw(self) -> str:
        rows = sorted(self.running, key=row_of)
        return draw(self.pool, [(sequence.computed, sequence.table) for sequence in rows])

    def audit(self) -> None:
        check_pool(self.pool, self.running, self.pins.blocks())
        rows = self.rows_in_use()
        assert len(set(rows)) == len(rows) <= self.max_num_seqs
        for sequence in self.living():
            assert len(sequence.known) <= self.max_model_len, "L10"
            if sequence in self.running:
                assert sequence.row is not None
                num_slots = len(sequence.table) * self.block_size
                assert sequence.computed <= sequence.scheduled <= num_slots
                assert sequence not in self.waiting
            else:
                assert not sequence.table
                assert not sequence.twins

    def living(self) -> list[NaiveSequence]:
        """Every sequence whose handle is not stale."""
        members = [member for request in self.requests for member in request.members]
        return [member for member in members if not member.is_forgotten]


def _plural(argument: str, i: int) -> str:
    if argument in ("n", "tenant", "adapter", "stop_token_ids") or "extra_keys" in argument:
        return argument
    return f"{'prompts' if argument == 'prompt' else argument}[{i}]"

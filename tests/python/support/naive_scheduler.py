"""The naive twin of `octavo.Scheduler`: the calls, and what they change between two steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from octavo import Reason
from octavo.errors import RequestError, StaleHandleError, StateError, UnknownHandleError
from support.naive_cache import pool_stats
from support.naive_draw import draw
from support.naive_identity import checked_identity, checked_tokens
from support.naive_laws import check_pool
from support.naive_plan import NaiveOutcome, NaivePlan, Placed
from support.naive_pool import NaivePool
from support.naive_request import Limits, NaiveRequest, checked_request
from support.naive_step import NaiveStep

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# What `add_many` takes one for each prompt of.
EACH = ("max_tokens", "min_tokens", "priority", "deadline", "arrival")


class NaiveScheduler:
    """Handles are 1, 2, 3 …, a request's and its sequence's in turn, and never given twice."""

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
        prefix_caching: bool = True,
    ) -> None:
        self.pool = NaivePool(num_blocks, block_size)
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
        self.watermark_blocks = math.floor(watermark * num_blocks)
        self.prefix_caching = prefix_caching
        self.limits = Limits(
            block_size, num_blocks, max_num_seqs, max_model_len, reserve == "worst_case"
        )
        self.requests: list[NaiveRequest] = []  # in the order of add, until they are stale
        self.running: list[NaiveRequest] = []
        self.waiting: list[NaiveRequest] = []
        self.not_ready: list[NaiveRequest] = []
        self.padding: list[int] = []  # rows of finished members of the static batch that runs
        self.unreported: list[NaiveRequest] = []  # ended, and no outcome said so
        self.unapplied: list[NaiveRequest] = []  # ended, and still holding rows or places
        self.unlisted: list[int] = []  # applied ends for the next plan's `ended`
        self.merges: list[tuple[NaiveRequest, int]] = []
        self.num_issued = 0
        self.num_added = 0
        self.now: float | None = None
        self.out: tuple[NaivePlan, list[Placed]] | None = None
        self.block_tables = self.current_tables()
        self.counters = dict.fromkeys(COUNTERS, 0)

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

    def set_ready(self, request: int) -> None:
        waits = self._find(request, kinds=(1,))
        if waits.reason is None and not waits.is_ready:
            waits.is_ready = True
            self.not_ready.remove(waits)
            self.waiting.append(waits)

    def _take(self, request: NaiveRequest) -> int:
        if request.arrival is None:
            request.arrival = self.now
        request.handle, request.seq = self.num_issued + 1, self.num_issued + 2
        self.num_issued += 2
        request.order = self.num_added
        self.num_added += 1
        self.requests.append(request)
        (self.waiting if request.is_ready else self.not_ready).append(request)
        return request.handle

    def sequences(self, request: int) -> list[int]:
        return [self._find(request, kinds=(1,)).seq]

    def tokens(self, seq: int) -> list[int]:
        return list(self._find(seq, kinds=(0,)).known)

    def abort(self, handle: int) -> None:
        self._end_from_outside(handle, Reason.ABORTED)

    def finish(self, handle: int) -> None:
        self._end_from_outside(handle, Reason.FINISHED)

    def _end_from_outside(self, handle: int, reason: Reason) -> None:
        request = self._find(handle, kinds=(0, 1))
        if request.reason is None:
            self.end(request, reason)

    def end(self, request: NaiveRequest, reason: Reason, *, applied: bool = False) -> None:
        request.reason = reason
        self.unreported.append(request)
        self.counters["finished"] += 1
        if applied:
            self.unlisted.append(request.seq)
        else:
            self.unapplied.append(request)

    def _find(self, handle: int, kinds: tuple[int, ...]) -> NaiveRequest:
        if not 1 <= handle <= self.num_issued or handle % 2 not in kinds:
            raise UnknownHandleError(handle)
        for request in self.requests:
            if handle in (request.handle, request.seq):
                return request
        raise StaleHandleError(handle)

    # --- steps -------------------------------------------------------------------------------

    def step(self, now: float) -> NaivePlan | None:
        if not math.isfinite(now):
            raise RequestError("now", "is not finite")
        if self.now is not None and now < self.now:
            raise RequestError("now", "goes back", self.now, self.now - now)
        self.now = now
        if self.out is not None:
            return None
        self.requests = [request for request in self.requests if not request.is_reported]
        for request in self.requests:
            if request.arrival is None:
                request.arrival = now
        self._apply_ends()
        step = NaiveStep(self)
        step.decide()
        plan = self._fill(step) if step.is_worth_a_plan() else None
        self.block_tables = self.current_tables()
        if plan is not None:
            self.out = plan, step.placed
            self.counters["steps"] += 1
        return plan

    def _apply_ends(self) -> None:
        for request in self.unapplied:
            if request.row is None:
                (self.waiting if request.is_ready else self.not_ready).remove(request)
            else:
                if self.batching == "static":
                    self.padding.append(request.row)
                self.leave_row(request)
            self.unlisted.append(request.seq)
        self.unapplied = []
        if not self.running:
            self.padding = []

    def order_of(self, request: NaiveRequest) -> tuple[float, float, int]:
        assert request.arrival is not None
        own = request.class_under(self.policy)
        key = own if math.isinf(own) else own + self.aging * request.arrival
        return key, request.arrival, request.order

    def class_of(self, request: NaiveRequest) -> float:
        return request.class_under(self.policy)

    def blocks_for_all_of(self, request: NaiveRequest) -> int:
        """The blocks that an admission finds for all that the request knows, or may know."""
        worst = self.limits.worst_blocks(len(request.prompt), request.max_tokens)
        return max(-(-len(request.known) // self.block_size), worst)

    def leave_row(self, request: NaiveRequest) -> None:
        self.pool.release_table(request.table)
        request.table = []
        request.row = None
        self.running.remove(request)

    def _fill(self, step: NaiveStep) -> NaivePlan:
        plan = NaivePlan(self.counters["steps"])
        plan.num_padded = len(self.padding) if any(p.is_decode for p in step.placed) else 0
        for placed in step.placed:
            plan.append(placed, self.block_size)
        plan.table_changes = self._table_changes(step)
        plan.admitted = [request.seq for request in step.admitted]
        plan.resumed = [request.seq for request in step.resumed]
        plan.preempted = [request.seq for request in step.preempted]
        plan.ended, self.unlisted = self.unlisted, []
        return plan

    def _table_changes(self, step: NaiveStep) -> list[list[int]]:
        changes: list[list[int]] = []
        for placed in step.placed:
            request = placed.request
            since = 0 if placed.newly_given else step.length_before[request.seq]
            changes += [
                [0, _row(request), index, request.table[index]]
                for index in range(since, len(request.table))
            ]
        newly_given = [placed.request for placed in step.placed if placed.newly_given]
        merges, self.merges = self.merges, []
        for position, (request, index) in enumerate(merges):
            is_last = (request, index) not in merges[position + 1 :]
            if is_last and request in self.running and request not in newly_given:
                changes.append([0, _row(request), index, request.table[index]])
        return changes

    # --- commits -----------------------------------------------------------------------------

    def commit(
        self, plan: NaivePlan, tokens: Sequence[int], counts: Sequence[int] | None = None
    ) -> NaiveOutcome:
        if self.out is None or self.out[0] is not plan:
            raise StateError("this plan is not out")
        num_samples = len(plan.sample_seqs)
        if len(tokens) != num_samples:
            raise RequestError("tokens", f"has {len(tokens)} tokens for {num_samples} samples")
        sampled = checked_tokens("tokens", tokens)
        if counts is not None and list(counts) != [1] * num_samples:
            raise RequestError("counts", "is not all 1")
        placed, self.out = self.out[1], None
        outcome = NaiveOutcome()
        for row in placed:
            # What a row samples is decided before its tokens count as computed.
            token = sampled.pop(0) if row.samples else None
            self._compute(row)
            if row.request.reason is None:
                self._accept(row.request, token, outcome)
        outcome.finished = [request.seq for request in self.unreported]
        outcome.reasons = [Reason(request.reason or 0) for request in self.unreported]
        for request in self.unreported:
            request.is_reported = True
        self.unreported = []
        return outcome

    def _compute(self, row: Placed) -> None:
        request = row.request
        start, past = request.computed, request.computed + row.num_tokens
        request.computed = past
        self.counters["scheduled_tokens"] += row.num_tokens
        recomputed = min(request.high_water, past) - start
        self.counters["recomputed_tokens"] += max(0, recomputed)
        request.high_water = max(request.high_water, past)
        if not self.caches(request):
            return
        for index in range(start // self.block_size, past // self.block_size):
            history = request.identity.history(request.known, index + 1, self.block_size)
            own = request.table[index]
            request.table[index] = self.pool.publish(own, history)
            if request.table[index] != own:
                self.merges.append((request, index))

    def _accept(self, request: NaiveRequest, token: int | None, outcome: NaiveOutcome) -> None:
        if token is None:
            if request.max_tokens == 0 and request.computed == len(request.known):
                self.end(request, Reason.LENGTH)
            return
        request.known.append(token)
        request.emitted += 1
        outcome.seqs.append(request.seq)
        outcome.tokens.append(token)
        outcome.indptr.append(len(outcome.tokens))
        if token in request.stop_token_ids and request.emitted >= request.min_tokens:
            self.end(request, Reason.STOP)
        elif request.emitted == request.max_tokens or len(request.known) == self.max_model_len:
            self.end(request, Reason.LENGTH)

    # --- the whole ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        some_alive = any(request.reason is None for request in self.requests)
        return some_alive or self.out is not None or bool(self.unreported)

    def caches(self, request: NaiveRequest) -> bool:
        return self.prefix_caching and request.use_cache

    def match(
        self, tokens: Sequence[int], *, salt: bytes = b"", extra_keys: Sequence[Any] = ()
    ) -> int:
        prompt = checked_tokens("tokens", tokens)
        identity = checked_identity(salt, extra_keys)
        if not self.prefix_caching or not prompt:
            return 0
        limit = (len(prompt) - 1) // self.block_size
        return len(self.pool.longest_hit(identity, prompt, limit)) * self.block_size

    def clear(self) -> bool:
        return self.out is None and self.pool.clear()

    def stats(self) -> dict[str, int]:
        waiting = self.waiting + self.not_ready
        unended = [request for request in waiting if request.reason is None]
        return (
            pool_stats(self.pool)
            | self.counters
            | {
                "waiting": len(unended),
                "running": sum(request.reason is None for request in self.running),
                "requests": len(self.requests),
                "plans_out": int(self.out is not None),
            }
        )

    def draw(self) -> str:
        rows = sorted(self.running, key=_row)
        return draw(self.pool, [(request.computed, request.table) for request in rows])

    def current_tables(self) -> list[list[int]]:
        width = -(-self.max_model_len // self.block_size)
        tables = [[0] * width for _ in range(self.max_num_seqs)]
        for request in self.running:
            tables[_row(request)][: len(request.table)] = request.table
        return tables

    def audit(self) -> None:
        check_pool(self.pool, [request.table for request in self.running])
        rows = [request.row for request in self.running] + self.padding
        assert len(set(rows)) == len(rows) <= self.max_num_seqs
        for request in self.requests:
            assert len(request.known) <= self.max_model_len, "L10"
            if request.row is None:
                assert not request.table
                assert request not in self.running
            else:
                assert request.computed <= len(request.table) * self.block_size
                assert request not in self.waiting


def _plural(argument: str, i: int) -> str:
    if argument in ("n", "tenant", "adapter", "stop_token_ids") or "extra_keys" in argument:
        return argument
    return f"{'prompts' if argument == 'prompt' else argument}[{i}]"


def _row(request: NaiveRequest) -> int:
    assert request.row is not None
    return request.row

"""A state machine that drives `octavo.Scheduler` and its naive twin through the public API."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import octavo
from octavo import Reason
from octavo.errors import RequestError, StaleHandleError, StateError, UnknownHandleError
from stateful.worlds import (
    BAD_EXTRA_KEYS,
    BAD_REQUESTS,
    BAD_TOKENS,
    CROWDED_POOLS,
    EXTRA_KEYS,
    FORGED,
    HASH_SEEDS,
    IDENTITIES,
    MOMENTS,
    PRIORITIES,
    REQUEST_OPTIONS,
    SCHEDULER_OPTIONS,
    flipped_kind,
    token_lists,
)
from support.scheduler_pair import SchedulerPair

PICK = st.integers(0, 15)
CALLS = ("abort", "finish", "tokens", "sequences", "set_ready")
ON_REQUESTS = ("sequences", "set_ready")
MAX_REQUESTS = 16
# max_tokens and min_tokens.
LIMITS = st.sampled_from([(8, 0), (12, 0), (5, 2), (3, 0), (3, 3), (1, 0), (0, 0)])
# What a round of steps samples: mostly the same, so that equal requests stay equal for a while.
SAMPLED = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=5, max_size=5)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, commits, aborts, and misuses every call, in a pool of a few blocks."""

    hashing: ClassVar[dict[str, int]] = {}

    @initialize(
        num_blocks=CROWDED_POOLS,
        hash_seed=HASH_SEEDS,
        options=SCHEDULER_OPTIONS,
        crowd=st.lists(st.tuples(token_lists(9, min_size=1), LIMITS), max_size=6),
    )
    def build(
        self, num_blocks: int, hash_seed: int, options: dict[str, Any], crowd: list[Any]
    ) -> None:
        self.num_blocks, self.options = num_blocks, options
        hashing = {"hash_seed": hash_seed} | self.hashing
        self.pair = SchedulerPair(num_blocks, hashing=hashing, **options)
        self.now = 0.0
        for prompt, limits in crowd:
            self.add(prompt, 1, limits, {}, {})

    def is_out(self) -> bool:
        return self.pair.out is not None

    def num_samples(self) -> int:
        return len(self.pair.out[0].sample) if self.pair.out else 0

    # --- requests ----------------------------------------------------------------------------

    @rule(
        prompt=st.one_of(token_lists(6, min_size=1), token_lists(14)),
        times=st.integers(1, 3),
        limits=LIMITS,
        identity=IDENTITIES,
        options=REQUEST_OPTIONS,
    )
    def add(
        self,
        prompt: Any,
        times: int,
        limits: tuple[int, int],
        identity: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        options = options | identity | {"max_tokens": limits[0], "min_tokens": limits[1]}
        longest = len(prompt)
        if self.options["reserve"] == "worst_case":
            longest = min(longest + limits[0], self.options["max_model_len"])
        num_blocks = -(-longest // self.options["block_size"])
        is_refused = not 0 < len(prompt) < self.options["max_model_len"]
        for _ in range(min(times, MAX_REQUESTS - len(self.pair.requests))):
            error = self.pair.add(prompt, **options)
            assert (error is not None) == (is_refused or num_blocks > self.num_blocks)

    @rule(
        prompts=st.lists(token_lists(7), min_size=3, max_size=3),
        limits=st.one_of(LIMITS, st.lists(st.sampled_from([0, 2, 6]), min_size=3, max_size=3)),
        priority=PRIORITIES,
        deadline=MOMENTS,
        arrival=MOMENTS,
        key=st.sampled_from([None, None, None, float]),
        ready=st.booleans(),
    )
    def add_many(self, prompts: list[Any], limits: Any, **options: Any) -> None:
        if len(self.pair.requests) + 3 <= MAX_REQUESTS:
            options["max_tokens"] = limits[0] if isinstance(limits, tuple) else np.array(limits)
            self.pair.add_many(prompts, **options)

    @rule(pick=PICK, call=st.sampled_from(CALLS), by_request=st.booleans())
    def call_on_request(self, pick: int, call: str, by_request: bool) -> None:  # noqa: FBT001 - drawn, and passed by name
        if self.pair.requests:
            pick %= len(self.pair.requests)
            by_request = by_request or call in ON_REQUESTS
            handles = self.pair.requests if by_request else self.pair.seqs
            self.pair.on(call, handles[pick])

    @rule(tokens=token_lists(12), identity=IDENTITIES)
    def look(self, tokens: Any, identity: dict[str, Any]) -> None:
        state = self.pair.state
        self.pair.match(tokens, **identity)
        for seq in self.pair.seqs:
            self.pair.on("tokens", seq)
        assert self.pair.snapshot() == state

    @rule()
    def clear(self) -> None:
        self.pair.clear()

    # --- steps -------------------------------------------------------------------------------

    @rule(later=st.sampled_from([0.0, 0.5, 1.0]))
    def step(self, later: float) -> None:
        was_out = self.is_out()
        state = self.pair.state
        twin = self.pair.twin
        had_work = any(request.reason is None and request.is_ready for request in twin.requests)
        self.now += later
        plan = self.pair.step(self.now).value
        if was_out:
            assert plan is None, "one plan is out at most"
            assert self.pair.state == state
        elif plan is None:
            assert not had_work, "L11: with ready work a step does something"
        else:
            self.check_plan(plan)

    def check_plan(self, plan: Any) -> None:
        num_tokens = len(plan.token_ids)
        assert num_tokens <= self.options["max_num_batched_tokens"], "L10"
        assert len(plan.seqs) <= self.options["max_num_seqs"], "L10"
        assert all(length <= self.options["max_model_len"] for length in plan.seq_lens), "L10"
        assert num_tokens > 0 or len(plan.ended) > 0, "L11"
        assert plan.token_ids.dtype == plan.positions.dtype == np.int32
        assert plan.seqs.dtype == plan.slot_mapping.dtype == np.int64
        assert not plan.token_ids.flags.writeable
        written = plan.slot_mapping.tolist()
        assert len(set(written)) == len(written), "L3: no slot is written twice"
        self.pair.check_mirror()

    @rule(tokens=SAMPLED, shape=st.sampled_from([list, np.int32, np.int64]), counted=st.booleans())
    def commit(self, tokens: list[int], shape: Any, counted: bool) -> None:  # noqa: FBT001 - drawn, and passed by name
        if self.is_out():
            size = self.num_samples()
            passed = tokens[:size] if shape is list else np.array(tokens[:size], dtype=shape)
            counts = [1] * size if counted else None
            assert self.pair.commit(passed, counts).error is None

    @rule(tokens=SAMPLED, rounds=st.integers(1, 6))
    def run(self, tokens: list[int], rounds: int) -> None:
        for _ in range(rounds):
            if not self.is_out():
                self.step(1.0)
            if not self.is_out():
                return
            assert self.pair.commit(tokens[: self.num_samples()]).error is None

    # --- misuse ------------------------------------------------------------------------------

    @rule(
        extra=st.sampled_from([-1, 1]),
        counts=st.sampled_from([[], [0], [2], [1] * 6, [[1]], [1.5]]),
        tokens=BAD_TOKENS,
        pick=PICK,
    )
    def commit_wrongly(self, extra: int, counts: Any, tokens: Any, pick: int) -> None:
        other = octavo.Scheduler(4, max_num_seqs=1, max_model_len=4)
        other.add([0], max_tokens=1)
        plans = [other.step(0.0), *self.pair.committed[pick : pick + 1]]
        self.refuse([(StateError, None, (plan, [0])) for plan in plans])
        if self.pair.out is None:
            return
        plan, size = self.pair.out[0], self.num_samples()
        calls: list[Any] = [(RequestError, "tokens", (plan, tokens))]
        if size + extra >= 0:
            calls.append((RequestError, "tokens", (plan, [0] * (size + extra))))
        if counts != [1] * size:
            calls.append((RequestError, "counts", (plan, [0] * size, counts)))
        self.refuse(calls)

    def refuse(self, calls: list[Any]) -> None:
        for expected, argument, arguments in calls:
            with pytest.raises(expected) as caught:
                self.pair.real.commit(*arguments)
            assert argument is None or caught.value.argument == argument
            assert self.pair.snapshot() == self.pair.state, "L12"

    @rule(now=st.sampled_from([math.nan, math.inf, -math.inf, -1.0]))
    def step_at_bad_time(self, now: float) -> None:
        if now != -1.0 or self.pair.twin.now is not None:
            assert isinstance(self.pair.step(now).error, RequestError)

    @rule(
        request=BAD_REQUESTS,
        prompt=BAD_TOKENS,
        before=EXTRA_KEYS,
        bad=BAD_EXTRA_KEYS,
    )
    def add_bad_request(
        self, request: tuple[str, dict[str, Any]], prompt: Any, before: Any, bad: Any
    ) -> None:
        argument, options = request
        error = self.pair.add([0], **options)
        assert isinstance(error, RequestError)
        if self.options["reserve"] == "on_demand":
            assert error.argument == argument
        else:
            assert error.argument in (argument, "max_tokens")
        keys = [*before, bad]
        for name, tokens, options in (
            ("prompt", prompt, {}),
            (f"extra_keys[{len(before)}]", [0], {"extra_keys": keys}),
        ):
            with pytest.raises(RequestError) as caught:
                self.pair.real.add(tokens, max_tokens=1, **options)
            assert caught.value.argument == name
            assert self.pair.snapshot() == self.pair.state, "L12"

    @rule(forged=FORGED, pick=PICK, call=st.sampled_from(CALLS))
    def use_wrong_handle(self, forged: int, pick: int, call: str) -> None:
        if forged not in self.pair.names.real:
            assert isinstance(self.pair.on(call, forged).error, UnknownHandleError)
        if self.pair.requests:
            pick %= len(self.pair.requests)
            request, seq = self.pair.requests[pick], self.pair.seqs[pick]
            assert isinstance(self.pair.on("tokens", request).error, UnknownHandleError)
            for needs_request in ON_REQUESTS:
                assert isinstance(self.pair.on(needs_request, seq).error, UnknownHandleError)
            for other_kind in (flipped_kind(request), flipped_kind(seq)):
                if other_kind not in self.pair.names.real:
                    assert isinstance(self.pair.on(call, other_kind).error, UnknownHandleError)

    # --- always ------------------------------------------------------------------------------

    @invariant()
    def blocks_are_conserved(self) -> None:
        stats = self.pair.real.stats()
        assert stats.blank + stats.cached + stats.held + stats.fenced == stats.usable, "L1"
        assert self.hashing or stats.hash_collisions == 0

    def teardown(self) -> None:
        """L11: whatever was added ends in a bounded number of steps, and leaves nothing."""
        if not hasattr(self, "pair"):
            return
        twin = self.pair.twin
        for request in self.pair.requests:
            self.pair.on("set_ready", request)
        unended = [request for request in twin.requests if request.reason is None]
        bound = 4 + 24 * sum(len(request.known) + request.max_tokens for request in unended)
        while self.pair.real.has_work:
            bound -= 1
            assert bound > 0, "L11: every request ends in a bounded number of steps"
            if not self.is_out():
                self.step(1.0)
            assert self.pair.commit([0] * self.num_samples()).error is None
        assert self.pair.step(self.now + 1.0).value is None
        stats = self.pair.real.stats()
        assert stats.available == stats.usable, "at idle every block is available"
        assert stats.requests == 0
        for seq in self.pair.seqs:
            assert isinstance(self.pair.on("tokens", seq).error, StaleHandleError)
        self.tell(stats)

    def tell(self, stats: Any) -> None:
        """What this example was about, for Hypothesis's statistics."""
        for name in ("preemptions", "resumed_hits", "prefix_hits", "merged_blocks"):
            if getattr(stats, name):
                event(f"some {name}")
        if stats.evicted_blocks:
            event("some evicted_blocks")
        for reason in sorted(self.pair.reasons):
            event(f"ended by {Reason(reason).name.lower()}")


class CollidingSchedulerMachine(SchedulerMachine):
    """The same with block hashes of 8 bits: blocks collide, plans do not change."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 8}


class OneBitSchedulerMachine(SchedulerMachine):
    """The same with block hashes of one bit."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 1}


TestScheduler = SchedulerMachine.TestCase
TestCollidingScheduler = CollidingSchedulerMachine.TestCase
TestOneBitScheduler = pytest.mark.slow(OneBitSchedulerMachine.TestCase)

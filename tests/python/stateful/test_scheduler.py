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
    EXPIRIES,
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
# How the tokens of a commit are passed.
SHAPES = st.sampled_from([list, np.int32, np.int64])


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, commits, aborts, and misuses every call, in a pool of a few blocks."""

    hashing: ClassVar[dict[str, int]] = {}

    @initialize(
        num_blocks=CROWDED_POOLS,
        hash_seed=HASH_SEEDS,
        options=SCHEDULER_OPTIONS,
        worker=st.fixed_dictionaries({"runs_late": st.booleans(), "taste": st.integers(0, 9)}),
        crowd=st.lists(st.tuples(token_lists(9, min_size=1), LIMITS), max_size=6),
    )
    def build(
        self,
        num_blocks: int,
        hash_seed: int,
        options: dict[str, Any],
        worker: dict[str, Any],
        crowd: list[Any],
    ) -> None:
        options["reserve_null_block"] &= num_blocks > 1
        self.options = options
        self.num_usable = num_blocks - options["reserve_null_block"]
        hashing = {"hash_seed": hash_seed} | self.hashing
        self.pair = SchedulerPair(num_blocks, hashing=hashing, **worker, **options)
        self.now = 0.0
        for prompt, limits in crowd:
            self.add(prompt, 1, limits, {}, {})

    def num_out(self) -> int:
        return len(self.pair.out)

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
        n, longest = options.get("n", 1), len(prompt)
        is_refused = n > self.options["max_num_seqs"]
        if self.options["reserve"] == "worst_case":
            longest = min(longest + limits[0], self.options["max_model_len"])
            is_refused |= n > 1
        num_blocks = -(-longest // self.options["block_size"])
        is_refused |= num_blocks > self.num_usable
        is_refused |= not 0 < len(prompt) < self.options["max_model_len"]
        for _ in range(min(times, MAX_REQUESTS - len(self.pair.requests))):
            error = self.pair.add(prompt, **options)
            assert (error is not None) == is_refused

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
            by_request = by_request or call in ON_REQUESTS
            handles = self.pair.requests if by_request else self.pair.seqs
            self.pair.on(call, handles[pick % len(handles)])

    @rule(pick=PICK, tokens=token_lists(5), max_tokens=st.sampled_from([3, 0, 1, 8, -1]))
    def extend(self, pick: int, tokens: Any, max_tokens: int) -> None:
        """Sometimes one that has not ended, or that is gone."""
        if self.pair.requests:
            request = self.pair.requests[pick % len(self.pair.requests)]
            self.pair.extend(request, tokens, max_tokens=max_tokens)

    @rule(pick=PICK, call=st.sampled_from(["abort", "finish"]), tokens=token_lists(4, min_size=1))
    def end_and_extend(self, pick: int, call: str, tokens: Any) -> None:
        if self.pair.requests:
            request = self.pair.requests[pick % len(self.pair.requests)]
            if self.pair.on(call, request).error is None:
                self.pair.extend(request, tokens, max_tokens=4)

    @rule(tokens=token_lists(12), identity=IDENTITIES)
    def look(self, tokens: Any, identity: dict[str, Any]) -> None:
        state = self.pair.state
        self.pair.match(tokens, **identity)
        for seq in self.pair.seqs:
            self.pair.on("tokens", seq)
        assert self.pair.snapshot() == state

    @rule(pick=PICK, length=st.integers(0, 12), expires=EXPIRIES)
    def pin(self, pick: int, length: int, expires: int | None) -> None:
        living = self.pair.twin.living()
        tokens = living[pick % len(living)].known if living else [0] * 8
        error = self.pair.pin(tokens[:length], expires=expires)
        assert (error is None) == (expires != 0)

    @rule(pick=PICK, chance=st.integers(0, 3))
    def unpin(self, pick: int, chance: int) -> None:
        if chance == 0:
            self.pair.new_epoch()
        elif chance == 1:
            self.pair.clear()
        elif self.pair.pins:
            error = self.pair.unpin(pick)
            assert error is None or isinstance(error, StaleHandleError)

    # --- steps -------------------------------------------------------------------------------

    @rule(later=st.sampled_from([0.0, 0.5, 1.0]), room=st.sampled_from([None, 0, 400, 4_096]))
    def step(self, later: float, room: int | None) -> None:
        self.take_step(later, room)

    def take_step(self, later: float, room: int | None = None) -> Any:
        num_out, twin = self.num_out(), self.pair.twin
        state, is_told_now = self.pair.state, bool(twin.unreported)
        is_held = bool(twin.pins.held)
        had_work = any(one.reason is None and one.family.is_ready for one in twin.living())
        self.now += later
        plan = self.pair.step(self.now, room).value
        if num_out == self.options["inflight_steps"]:
            assert plan is None, "so many plans are out at most"
            assert self.pair.state == state
        elif plan is not None:
            self.check_plan(plan, is_told_now=is_told_now)
        elif num_out == 0:
            assert not had_work or is_held, "L11: with ready work a step does something"
        return plan

    def check_plan(self, plan: Any, *, is_told_now: bool) -> None:
        num_tokens = len(plan.token_ids)
        assert num_tokens <= self.options["max_num_batched_tokens"], "L10"
        assert len(plan.seqs) <= self.options["max_num_seqs"], "L10"
        assert all(length < self.options["max_model_len"] for length in plan.seq_lens), "L10"
        assert num_tokens or is_told_now or len(plan.preempted) or len(plan.ended), "L11"
        assert plan.token_ids.dtype == plan.positions.dtype == np.int32
        assert plan.seqs.dtype == plan.slot_mapping.dtype == np.int64
        assert not plan.token_ids.flags.writeable
        written = plan.slot_mapping.tolist()
        assert len(set(written)) == len(written), "L3: no slot is written twice"
        self.pair.check_mirror()
        null = self.options["reserve_null_block"]
        assert not null or all(slot >= self.options["block_size"] for slot in written)

    @rule(shape=SHAPES, counted=st.booleans())
    def commit(self, shape: Any, counted: bool) -> None:  # noqa: FBT001 - drawn, and passed by name
        if self.num_out():
            size = len(self.pair.out[0].real.sample_seqs)
            assert self.pair.commit(shape, [1] * size if counted else None).error is None
            self.pair.check_truth()

    @rule(rounds=st.integers(1, 6), lag=st.integers(0, 3), extends=st.integers(0, 3))
    def run(self, rounds: int, lag: int, extends: int) -> None:
        """Steps, and commits the oldest plan once more than `lag` are out."""
        for _ in range(rounds):
            if self.take_step(1.0) is None or self.num_out() > lag:
                if not self.num_out():
                    return
                finished = self.pair.commit().value.finished
                if extends == 1:
                    self.extend_all_of(finished)

    def extend_all_of(self, finished: Any) -> None:
        """The next turns of the conversations that have just ended."""
        twins = [self.pair.names.twin_of(int(seq)) for seq in finished]
        for one in [one for one in self.pair.twin.living() if one.handle in twins]:
            self.pair.extend(self.pair.real_of(one.family.handle), [0, 1], max_tokens=3)

    @rule(place=st.integers(0, 3), chance=st.integers(0, 2))
    def cancel(self, place: int, chance: int) -> None:
        if self.num_out() and chance == 0:
            assert self.pair.cancel(place % self.num_out()).error is None

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
        plans = [other.step(0.0), *self.pair.gone[pick : pick + 1]]
        self.refuse([("cancel", StateError, None, (plan,)) for plan in plans])
        plans += [out.real for out in self.pair.out[1:]]
        self.refuse([("commit", StateError, None, (plan, [0])) for plan in plans])
        if not self.pair.out:
            return
        plan = self.pair.out[0].real
        size = len(plan.sample_seqs)
        calls: list[Any] = [("commit", RequestError, "tokens", (plan, tokens))]
        if size + extra >= 0:
            calls.append(("commit", RequestError, "tokens", (plan, [0] * (size + extra))))
        if counts != [1] * size:
            calls.append(("commit", RequestError, "counts", (plan, [0] * size, counts)))
        self.refuse(calls)

    def refuse(self, calls: list[Any]) -> None:
        for call, expected, argument, arguments in calls:
            with pytest.raises(expected) as caught:
                getattr(self.pair.real, call)(*arguments)
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
            assert isinstance(self.pair.extend(seq, [0], max_tokens=1), UnknownHandleError)
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
        for pick in range(len(self.pair.pins)):
            self.pair.unpin(pick)
        for request in self.pair.requests:
            self.pair.on("set_ready", request)
        unended = [one for one in self.pair.twin.living() if one.reason is None]
        bound = 72 * sum(len(one.known) + one.family.max_tokens + 1 for one in unended)
        bound += 4 + 2 * self.num_out()
        while self.pair.real.has_work:
            bound -= 1
            assert bound > 0, "L11: every request ends in a bounded number of steps"
            if self.take_step(1.0) is None:
                assert self.pair.commit().error is None
                self.pair.check_truth()
        assert self.pair.step(self.now + 1.0).value is None
        stats = self.pair.real.stats()
        assert stats.available == stats.usable, "at idle every block is available"
        assert stats.requests == 0
        for seq in self.pair.seqs:
            assert isinstance(self.pair.on("tokens", seq).error, StaleHandleError)
        self.tell(stats)

    def tell(self, stats: Any) -> None:
        """What this example was about, for Hypothesis's statistics."""
        for name in (
            "preemptions",
            "resumed_hits",
            "prefix_hits",
            "merged_blocks",
            "evicted_blocks",
        ):
            if getattr(stats, name):
                event(f"some {name}")
        for what in sorted(self.pair.seen):
            event(what)
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

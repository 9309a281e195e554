"""A state machine that drives `octavo.Scheduler` and its naive twin through the public API."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import octavo
from octavo.errors import RequestError, StaleHandleError, StateError, UnknownHandleError
from stateful.worlds import (
    BAD_EXTRA_KEYS,
    BAD_TOKENS,
    BLOCK_SIZES,
    EXTRA_KEYS,
    FORGED,
    HASH_SEEDS,
    POOLS,
    SALTS,
    flipped_kind,
    token_lists,
)
from support.scheduler_pair import SchedulerPair

PICK = st.integers(0, 15)
CALLS_ON_ANY = ("abort", "finish")
CALLS_ON_SEQ = ("tokens", *CALLS_ON_ANY)
CALLS_ON_REQUEST = ("sequences", *CALLS_ON_ANY)
MAX_REQUESTS = 16
BAD_REQUESTS = st.sampled_from(
    [
        ("max_tokens", {"max_tokens": -1}),
        ("min_tokens", {"max_tokens": 2, "min_tokens": -1}),
        ("min_tokens", {"max_tokens": 2, "min_tokens": 3}),
        ("stop_token_ids", {"max_tokens": 2, "stop_token_ids": [-1]}),
        ("n", {"max_tokens": 2, "n": 2}),
        ("n", {"max_tokens": 2, "n": 0}),
        ("ready", {"max_tokens": 2, "ready": False}),
        ("key", {"max_tokens": 2, "key": 1.0}),
        ("arrival", {"max_tokens": 2, "arrival": math.nan}),
        ("arrival", {"max_tokens": 2, "arrival": math.inf}),
        ("deadline", {"max_tokens": 2, "deadline": -math.inf}),
        ("adapter", {"max_tokens": 2, "adapter": -1}),
        ("tenant", {"max_tokens": 2, "tenant": -1}),
    ]
)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, commits, aborts, and misuses every call, in a pool of a few blocks."""

    hashing: ClassVar[dict[str, int]] = {}

    @initialize(
        num_blocks=POOLS,
        hash_seed=HASH_SEEDS,
        options=st.fixed_dictionaries(
            {
                "block_size": BLOCK_SIZES,
                "max_num_seqs": st.integers(1, 5),
                "max_num_batched_tokens": st.integers(1, 12),
                "max_model_len": st.integers(2, 24),
                "max_partial_prefills": st.integers(1, 3),
                "long_prefill_threshold": st.sampled_from([0, 0, 1, 2, 5]),
                "watermark": st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.99]),
                "prefix_caching": st.sampled_from([True, True, True, False]),
            }
        ),
    )
    def build(self, num_blocks: int, hash_seed: int, options: dict[str, Any]) -> None:
        self.num_blocks, self.options = num_blocks, options
        hashing = {"hash_seed": hash_seed} | self.hashing
        self.pair = SchedulerPair(num_blocks, hashing=hashing, **options)
        self.now = 0.0

    def is_out(self) -> bool:
        return self.pair.out is not None

    def has_requests(self) -> bool:
        return bool(self.pair.requests)

    def fits_more(self) -> bool:
        return len(self.pair.requests) < MAX_REQUESTS

    # --- requests ----------------------------------------------------------------------------

    @precondition(fits_more)
    @rule(
        prompt=token_lists(14),
        max_tokens=st.integers(0, 12),
        min_tokens=st.integers(0, 2),
        stops=st.sampled_from([(), (), (1,), (0, 1), (7,)]),
        options=st.fixed_dictionaries(
            {},
            optional={
                "arrival": st.sampled_from([-1.0, 0.0, 0.5, 2.0, 9.0]),
                "salt": SALTS,
                "extra_keys": EXTRA_KEYS,
                "adapter": st.sampled_from([0, 1, 2**63 - 1]),
                "use_cache": st.booleans(),
                "priority": st.integers(-1, 1),
                "tenant": st.integers(0, 1),
                "deadline": st.sampled_from([0.0, 5.0]),
            },
        ),
    )
    def add(
        self, prompt: Any, max_tokens: int, min_tokens: int, stops: Any, options: dict[str, Any]
    ) -> None:
        limits = {"max_tokens": max_tokens, "min_tokens": min(min_tokens, max_tokens)}
        error = self.pair.add(prompt, stop_token_ids=stops, **limits, **options)
        num_blocks = -(-len(prompt) // self.options["block_size"])
        is_refused = not 0 < len(prompt) < self.options["max_model_len"]
        assert (error is not None) == (is_refused or num_blocks > self.num_blocks)

    @precondition(has_requests)
    @rule(pick=PICK, call=st.sampled_from(CALLS_ON_REQUEST))
    def call_on_request(self, pick: int, call: str) -> None:
        self.pair.on(call, self.pair.requests[pick % len(self.pair.requests)])

    @precondition(has_requests)
    @rule(pick=PICK, call=st.sampled_from(CALLS_ON_SEQ))
    def call_on_seq(self, pick: int, call: str) -> None:
        self.pair.on(call, self.pair.seqs[pick % len(self.pair.seqs)])

    @rule(tokens=token_lists(12), salt=SALTS, extra_keys=EXTRA_KEYS)
    def match(self, tokens: Any, salt: bytes, extra_keys: Any) -> None:
        state = self.pair.state
        self.pair.match(tokens, salt=salt, extra_keys=extra_keys)
        assert self.pair.snapshot() == state

    # --- steps -------------------------------------------------------------------------------

    @rule(later=st.sampled_from([0.0, 0.5, 1.0]))
    def step(self, later: float) -> None:
        was_out = self.is_out()
        state = self.pair.state
        had_work = any(request.reason is None for request in self.pair.twin.requests)
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

    @precondition(is_out)
    @rule(data=st.data(), shape=st.sampled_from([list, np.int32, np.int64]))
    def commit(self, data: st.DataObject, shape: Any) -> None:
        size = len(self.pair.out[0].sample)
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
        counts = data.draw(st.sampled_from([None, [1] * size]))
        passed = tokens if shape is list else np.array(tokens, dtype=shape)
        assert self.pair.commit(passed, counts).error is None

    @precondition(lambda self: not self.is_out())
    @rule(tokens=st.lists(st.integers(0, 1), min_size=4, max_size=4), rounds=st.integers(1, 4))
    def run(self, tokens: list[int], rounds: int) -> None:
        for _ in range(rounds):
            self.step(1.0)
            if not self.is_out():
                return
            size = len(self.pair.out[0].sample)
            assert self.pair.commit((tokens * 2)[:size]).error is None

    # --- misuse ------------------------------------------------------------------------------

    @precondition(is_out)
    @rule(extra=st.sampled_from([-1, 1]))
    def commit_wrong_count(self, extra: int) -> None:
        size = len(self.pair.out[0].sample) + extra
        if size >= 0:
            assert isinstance(self.pair.commit([0] * size).error, RequestError)

    @precondition(is_out)
    @rule(counts=st.sampled_from([[], [0], [2], [1, 1, 1, 1, 1, 1], [[1]], [1.5]]))
    def commit_wrong_counts(self, counts: Any) -> None:
        size = len(self.pair.out[0].sample)
        if counts != [1] * size:
            with pytest.raises(RequestError) as caught:
                self.pair.real.commit(self.pair.out[0], [0] * size, counts)
            assert caught.value.argument == "counts"
            assert self.pair.snapshot() == self.pair.state

    @precondition(is_out)
    @rule(tokens=BAD_TOKENS)
    def commit_bad_tokens(self, tokens: Any) -> None:
        with pytest.raises(RequestError) as caught:
            self.pair.real.commit(self.pair.out[0], tokens)
        assert caught.value.argument == "tokens"
        assert self.pair.snapshot() == self.pair.state

    @precondition(lambda self: self.pair.committed)
    @rule(pick=PICK)
    def commit_older_plan(self, pick: int) -> None:
        older = self.pair.committed[pick % len(self.pair.committed)]
        with pytest.raises(StateError):
            self.pair.real.commit(older, [])
        assert self.pair.snapshot() == self.pair.state

    @rule()
    def commit_foreign_plan(self) -> None:
        other = octavo.Scheduler(4, max_num_seqs=1, max_model_len=4)
        other.add([0], max_tokens=1)
        plan = other.step(0.0)
        with pytest.raises(StateError):
            self.pair.real.commit(plan, [0])
        assert self.pair.snapshot() == self.pair.state

    @rule(now=st.sampled_from([math.nan, math.inf, -math.inf, -1.0]))
    def step_at_bad_time(self, now: float) -> None:
        if now != -1.0 or self.pair.twin.now is not None:
            assert isinstance(self.pair.step(now).error, RequestError)

    @rule(bad=BAD_REQUESTS)
    def add_bad_request(self, bad: tuple[str, dict[str, Any]]) -> None:
        argument, options = bad
        error = self.pair.add([0], **options)
        assert isinstance(error, RequestError)
        assert error.argument == argument

    @rule(prompt=BAD_TOKENS)
    def add_bad_prompt(self, prompt: Any) -> None:
        with pytest.raises(RequestError) as caught:
            self.pair.real.add(prompt, max_tokens=1)
        assert caught.value.argument == "prompt"
        assert self.pair.snapshot() == self.pair.state

    @rule(before=EXTRA_KEYS, bad=BAD_EXTRA_KEYS)
    def add_bad_extra_keys(self, before: Any, bad: Any) -> None:
        with pytest.raises(RequestError) as caught:
            self.pair.real.add([0], max_tokens=1, extra_keys=[*before, bad])
        assert caught.value.argument == f"extra_keys[{len(before)}]"
        assert self.pair.snapshot() == self.pair.state

    @rule(forged=FORGED, call=st.sampled_from(["tokens", "sequences", *CALLS_ON_ANY]))
    def use_forged_handle(self, forged: int, call: str) -> None:
        if forged not in self.pair.names.real:
            assert isinstance(self.pair.on(call, forged).error, UnknownHandleError)

    @precondition(has_requests)
    @rule(pick=PICK)
    def use_wrong_kind(self, pick: int) -> None:
        pick %= len(self.pair.requests)
        request, seq = self.pair.requests[pick], self.pair.seqs[pick]
        assert isinstance(self.pair.on("tokens", request).error, UnknownHandleError)
        assert isinstance(self.pair.on("sequences", seq).error, UnknownHandleError)
        for other_kind in {flipped_kind(request), flipped_kind(seq)} - {request, seq}:
            self.pair.on("abort", other_kind)

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
        unended = [request for request in twin.requests if request.reason is None]
        bound = 4 + 24 * sum(len(request.known) + request.max_tokens for request in unended)
        while self.pair.real.has_work:
            bound -= 1
            assert bound > 0, "L11: every request ends in a bounded number of steps"
            if not self.is_out():
                self.step(1.0)
            size = len(self.pair.out[0].sample)
            assert self.pair.commit([0] * size).error is None
        assert self.pair.step(self.now + 1.0).value is None
        stats = self.pair.real.stats()
        assert stats.available == stats.usable, "at idle every block is available"
        assert stats.requests == 0
        for seq in self.pair.seqs:
            assert isinstance(self.pair.on("tokens", seq).error, StaleHandleError)
        for name in ("preemptions", "resumed_hits", "prefix_hits", "merged_blocks"):
            if getattr(stats, name):
                event(f"some {name}")


class CollidingSchedulerMachine(SchedulerMachine):
    """The same with block hashes of 8 bits: blocks collide, plans do not change."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 8}


class OneBitSchedulerMachine(SchedulerMachine):
    """The same with block hashes of one bit."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 1}


TestScheduler = SchedulerMachine.TestCase
TestCollidingScheduler = CollidingSchedulerMachine.TestCase
TestOneBitScheduler = OneBitSchedulerMachine.TestCase

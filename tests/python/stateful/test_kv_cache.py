"""A state machine that drives `octavo.KVCache` and its naive twin through the public API."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import octavo
from octavo.errors import OctavoError, RequestError, StaleHandleError, UnknownHandleError
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
from support.cache_pair import CachePair

PICK = st.integers(0, 11)
MAX_LIVE = 6
CALLS_ON_ONE = ("close", "table", "num_computed", "fork")
CALLS_WITH_LENGTH = ("reserve", "can_reserve", "truncate")


class CacheMachine(RuleBasedStateMachine):
    """Opens, grows, forks, rolls back and closes sequences in a pool of a few blocks."""

    hashing: ClassVar[dict[str, int]] = {}

    @initialize(
        num_blocks=POOLS,
        block_size=BLOCK_SIZES,
        caching=st.integers(0, 9),
        hash_seed=HASH_SEEDS,
    )
    def build(self, num_blocks: int, block_size: int, caching: int, hash_seed: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        options = {"hash_seed": hash_seed} | self.hashing
        self.pair = CachePair(num_blocks, block_size, prefix_caching=caching > 0, **options)
        self.steps: list[int] = []

    def seq(self, pick: int) -> int:
        return self.pair.live[pick % len(self.pair.live)]

    def some_live(self) -> bool:
        return bool(self.pair.live)

    def room_for_more(self) -> bool:
        return len(self.pair.live) < MAX_LIVE

    # --- sequences ---------------------------------------------------------------------------

    @precondition(room_for_more)
    @rule(tokens=token_lists(12), salt=SALTS, extra_keys=EXTRA_KEYS)
    def open(self, tokens: Any, salt: bytes, extra_keys: Any) -> None:
        expected = self.pair.real.match(tokens, salt=salt, extra_keys=extra_keys)
        assert self.pair.open(tokens, salt=salt, extra_keys=extra_keys) is None
        assert self.pair.real.num_computed(self.pair.live[-1]) == expected

    @precondition(room_for_more)
    @rule(tokens=token_lists(12, min_size=1), salt=SALTS, extra_keys=EXTRA_KEYS)
    def run_prompt(self, tokens: Any, salt: bytes, extra_keys: Any) -> None:
        self.pair.open(tokens, salt=salt, extra_keys=extra_keys)
        seq = self.pair.live[-1]
        if self.pair.on("reserve", seq, len(tokens)).error is None:
            rest = tokens[self.pair.real.num_computed(seq) :]
            assert self.pair.on("advance", seq, rest).error is None

    @rule(tokens=token_lists(12), salt=SALTS, extra_keys=EXTRA_KEYS)
    def match(self, tokens: Any, salt: bytes, extra_keys: Any) -> None:
        state = self.pair.state
        hit = self.pair.whole("match", tokens, salt=salt, extra_keys=extra_keys).value
        assert hit % self.block_size == 0
        assert hit <= max(0, len(tokens) - 1), "a hit leaves a token to compute"
        assert self.pair.snapshot() == state

    @precondition(some_live)
    @rule(pick=PICK, tokens=token_lists(6))
    def grow(self, pick: int, tokens: Any) -> None:
        seq = self.seq(pick)
        length = self.pair.real.num_computed(seq) + len(tokens)
        fits = self.pair.on("can_reserve", seq, length).value
        error = self.pair.on("reserve", seq, length).error
        assert fits == (error is None)
        if error is None:
            assert self.pair.on("advance", seq, tokens).error is None

    @precondition(some_live)
    @rule(pick=PICK, call=st.sampled_from(CALLS_WITH_LENGTH), length=st.integers(-1, 52))
    def change_length(self, pick: int, call: str, length: int) -> None:
        self.pair.on(call, self.seq(pick), length)

    @precondition(some_live)
    @rule(pick=PICK, fewer=st.integers(0, 5))
    def roll_back(self, pick: int, fewer: int) -> None:
        seq = self.seq(pick)
        length = max(0, self.pair.real.num_computed(seq) - fewer)
        assert self.pair.on("truncate", seq, length).error is None

    @precondition(some_live)
    @rule(pick=PICK, tokens=token_lists(6))
    def advance(self, pick: int, tokens: Any) -> None:
        self.pair.on("advance", self.seq(pick), tokens)

    @precondition(lambda self: self.some_live() and self.room_for_more())
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        assert self.pair.fork(self.seq(pick)) is None

    @precondition(some_live)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        assert self.pair.close(self.seq(pick)) is None

    # --- arrays ------------------------------------------------------------------------------

    @precondition(some_live)
    @rule(picks=st.lists(PICK, max_size=3))
    def tables(self, picks: list[int]) -> None:
        self.pair.over("tables", [self.seq(pick) for pick in picks])

    @precondition(some_live)
    @rule(picks=st.lists(st.tuples(PICK, st.integers(0, 9)), max_size=3))
    def csr(self, picks: list[tuple[int, int]]) -> None:
        seqs = [self.seq(pick) for pick, _ in picks]
        self.pair.over("csr", seqs, [length for _, length in picks])

    @precondition(some_live)
    @rule(picks=st.lists(st.tuples(PICK, st.integers(0, 9), st.integers(0, 5)), max_size=3))
    def slots(self, picks: list[tuple[int, int, int]]) -> None:
        seqs = [self.seq(pick) for pick, _, _ in picks]
        starts, lens = [start for _, start, _ in picks], [length for _, _, length in picks]
        self.pair.over("slots", seqs, starts, lens)

    # --- steps and memory work ---------------------------------------------------------------

    @rule()
    def take_ops(self) -> None:
        copies = self.pair.take_ops()
        targets = {target for _, target, _ in copies}
        assert len(targets) == len(copies), "no block is the target of two copies"
        assert targets.isdisjoint(source for source, _, _ in copies), "chains are resolved"

    @precondition(lambda self: len(self.steps) < 3)
    @rule()
    def begin_step(self) -> None:
        self.steps.append(self.pair.whole("begin_step").value)

    @precondition(lambda self: self.steps)
    @rule()
    def end_oldest_step(self) -> None:
        assert self.pair.whole("end_step", self.steps.pop(0)).error is None

    @rule(step=st.integers(0, 6))
    def end_some_step(self, step: int) -> None:
        error = self.pair.whole("end_step", step).error
        assert (error is None) == (self.steps[:1] == [step])
        if error is None:
            self.steps.pop(0)

    @rule()
    def clear(self) -> None:
        state = self.pair.state
        if not self.pair.whole("clear").value:
            assert self.pair.snapshot() == state

    # --- misuse ------------------------------------------------------------------------------

    @precondition(lambda self: self.pair.dead)
    @rule(pick=PICK, call=st.sampled_from(CALLS_ON_ONE + CALLS_WITH_LENGTH))
    def use_dead_handle(self, pick: int, call: str) -> None:
        dead = self.pair.dead[pick % len(self.pair.dead)]
        self.misuse(call, dead, StaleHandleError)

    @rule(forged=FORGED, call=st.sampled_from(CALLS_ON_ONE + CALLS_WITH_LENGTH))
    def use_forged_handle(self, forged: int, call: str) -> None:
        if forged not in self.pair.names.real:
            self.misuse(call, forged, UnknownHandleError)

    @precondition(some_live)
    @rule(pick=PICK, call=st.sampled_from(CALLS_ON_ONE + CALLS_WITH_LENGTH))
    def use_wrong_kind(self, pick: int, call: str) -> None:
        self.misuse(call, flipped_kind(self.seq(pick)), UnknownHandleError)

    @rule(opened=st.integers(1, 8), call=st.sampled_from(CALLS_ON_ONE + CALLS_WITH_LENGTH))
    def use_foreign_handle(self, opened: int, call: str) -> None:
        other = octavo.KVCache(1)
        foreign = [other.open() for _ in range(opened)][-1]
        if foreign not in self.pair.names.real:
            self.misuse(call, foreign, UnknownHandleError)

    def misuse(self, call: str, handle: int, expected: type[OctavoError]) -> None:
        if call in ("fork", "close"):
            error = getattr(self.pair, call)(handle)
        elif call in CALLS_WITH_LENGTH:
            error = self.pair.on(call, handle, 1).error
        else:
            error = self.pair.on(call, handle).error
        assert type(error) is expected

    @rule(tokens=BAD_TOKENS, call=st.sampled_from(["open", "match"]))
    def pass_bad_tokens(self, tokens: Any, call: str) -> None:
        with pytest.raises(RequestError) as caught:
            getattr(self.pair.real, call)(tokens)
        assert caught.value.argument == "tokens"
        assert self.pair.snapshot() == self.pair.state

    @precondition(some_live)
    @rule(pick=PICK, tokens=BAD_TOKENS)
    def advance_bad_tokens(self, pick: int, tokens: Any) -> None:
        with pytest.raises(RequestError) as caught:
            self.pair.real.advance(self.seq(pick), tokens)
        assert caught.value.argument == "tokens"
        assert self.pair.snapshot() == self.pair.state

    @rule(before=EXTRA_KEYS, bad=BAD_EXTRA_KEYS, call=st.sampled_from(["open", "match"]))
    def pass_bad_extra_keys(self, before: Any, bad: Any, call: str) -> None:
        with pytest.raises(RequestError) as caught:
            getattr(self.pair.real, call)([0, 1], extra_keys=[*before, bad])
        assert caught.value.argument == f"extra_keys[{len(before)}]"
        assert self.pair.snapshot() == self.pair.state

    # --- always ------------------------------------------------------------------------------

    @invariant()
    def blocks_are_conserved(self) -> None:
        stats = self.pair.real.stats()
        assert stats.blank + stats.cached + stats.held + stats.fenced == stats.usable, "L1"
        assert self.hashing or stats.hash_collisions == 0

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        while self.pair.live:
            self.pair.close(self.pair.live[-1])
        self.pair.take_ops()
        while self.steps:
            self.pair.whole("end_step", self.steps.pop(0))
        stats = self.pair.real.stats()
        assert stats.available == stats.usable, "at idle every block is available"
        assert self.pair.whole("clear").value
        assert self.pair.real.stats().blank == self.num_blocks


class CollidingCacheMachine(CacheMachine):
    """The same with block hashes of 8 bits: blocks collide, hits do not change."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 8}


class OneBitCacheMachine(CacheMachine):
    """The same with block hashes of one bit."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 1}


TestCache = CacheMachine.TestCase
TestCollidingCache = CollidingCacheMachine.TestCase
TestOneBitCache = OneBitCacheMachine.TestCase

"""A state machine that drives `octavo.KVCache` and its naive twin through the public API."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import octavo
from octavo.errors import RequestError, StaleHandleError, StateError, UnknownHandleError
from stateful.worlds import (
    BAD_EXTRA_KEYS,
    BAD_TOKENS,
    BLOCK_SIZES,
    CACHE_OPTIONS,
    EXTRA_KEYS,
    FORGED,
    HASH_SEEDS,
    IDENTITIES,
    POOLS,
    flipped_kind,
    token_lists,
)
from support.cache_pair import CachePair

PICK = st.integers(0, 11)
MAX_LIVE = 6
CALLS_ON_ONE = ("close", "table", "num_computed", "fork", "reserve", "can_reserve", "truncate")
CALLS_WITH_LENGTH = ("reserve", "can_reserve", "truncate")


class CacheMachine(RuleBasedStateMachine):
    """Opens, grows, forks, rolls back and closes sequences in a pool of a few blocks."""

    hashing: ClassVar[dict[str, int]] = {}

    @initialize(
        shape=st.tuples(POOLS, BLOCK_SIZES),
        options=CACHE_OPTIONS,
        hash_seed=HASH_SEEDS,
        prompts=st.lists(token_lists(9, min_size=1), max_size=4),
    )
    def build(
        self,
        shape: tuple[int, int],
        options: dict[str, bool],
        hash_seed: int,
        prompts: list[Any],
    ) -> None:
        num_blocks, block_size = shape
        has_null = options["reserve_null_block"] and num_blocks > 1
        self.num_blocks, self.block_size = num_blocks, block_size
        options = options | {"reserve_null_block": has_null}
        hashing = {"hash_seed": hash_seed} | self.hashing
        self.pair = CachePair(num_blocks, block_size, **options, **hashing)
        self.num_usable = num_blocks - has_null
        self.steps: list[int] = []
        for prompt in prompts:
            self.open(prompt, {}, 1)

    def seq(self, pick: int) -> int:
        """One of the live sequences; the first one is made when it is asked for."""
        if not self.pair.live:
            assert self.pair.open([]) is None
        return self.pair.live[pick % len(self.pair.live)]

    def make_place(self) -> None:
        if len(self.pair.live) == MAX_LIVE:
            assert self.pair.close(self.pair.live[0]) is None

    # --- sequences ---------------------------------------------------------------------------

    @rule(tokens=token_lists(12), identity=IDENTITIES, computes=st.integers(0, 4))
    def open(self, tokens: Any, identity: dict[str, Any], computes: int) -> None:
        self.make_place()
        expected = self.pair.real.match(tokens, **identity)
        assert self.pair.open(tokens, **identity) is None
        seq = self.pair.live[-1]
        assert self.pair.real.num_computed(seq) == expected
        if computes and self.pair.on("reserve", seq, len(tokens)).error is None:
            assert self.pair.on("advance", seq, tokens[expected:]).error is None

    @rule(pick=PICK, tokens=token_lists(6))
    def grow(self, pick: int, tokens: Any) -> None:
        seq = self.seq(pick)
        length = self.pair.real.num_computed(seq) + len(tokens)
        fits = self.pair.on("can_reserve", seq, length).value
        error = self.pair.on("reserve", seq, length).error
        assert fits == (error is None)
        if error is None:
            assert self.pair.on("advance", seq, tokens).error is None

    @rule(pick=PICK, call=st.sampled_from(CALLS_WITH_LENGTH), length=st.integers(-1, 52))
    def change_length(self, pick: int, call: str, length: int) -> None:
        self.pair.on(call, self.seq(pick), length)

    @rule(pick=PICK, fewer=st.integers(0, 5), tokens=token_lists(4))
    def roll_back(self, pick: int, fewer: int, tokens: Any) -> None:
        seq = self.seq(pick)
        length = max(0, self.pair.real.num_computed(seq) - fewer)
        assert self.pair.on("truncate", seq, length).error is None
        if len(tokens):
            self.grow(pick, tokens)

    @rule(pick=PICK, more=st.integers(0, 5), tokens=token_lists(6))
    def reserve_then_advance(self, pick: int, more: int, tokens: Any) -> None:
        seq = self.seq(pick)
        self.pair.on("reserve", seq, self.pair.real.num_computed(seq) + more)
        error = self.pair.on("advance", seq, tokens).error
        assert error is None or isinstance(error, StateError)

    @rule(pick=PICK, tokens=token_lists(4))
    def fork(self, pick: int, tokens: Any) -> None:
        parent = self.seq(pick)
        if len(self.pair.live) < MAX_LIVE:
            assert self.pair.fork(parent) is None
        if len(tokens):
            self.grow(len(self.pair.live) - 1, tokens)

    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        assert self.pair.close(self.seq(pick)) is None

    @rule(picks=st.lists(PICK, max_size=4), tokens=st.lists(token_lists(4), max_size=4))
    def grow_many(self, picks: list[int], tokens: list[Any]) -> None:
        """Sometimes one sequence twice, sometimes lists that do not fit each other."""
        seqs = [self.seq(pick) for pick in picks]
        parts = [list(map(int, part)) for part in tokens]
        counts = list(map(len, parts))
        lengths = [
            self.pair.real.num_computed(seq) + count
            for seq, count in zip(seqs, counts, strict=False)
        ]
        self.pair.many("reserve", seqs, lengths)
        self.pair.many("advance", seqs, [token for part in parts for token in part], counts)

    @rule(
        prompts=st.lists(token_lists(9), max_size=3),
        identity=IDENTITIES,
        closed=st.lists(PICK, max_size=3),
    )
    def open_and_close_many(self, prompts: list[Any], identity: Any, closed: list[int]) -> None:
        if self.pair.live:
            self.pair.many("close", [self.seq(pick) for pick in closed])
        room = MAX_LIVE - len(self.pair.live)
        self.pair.open_many(prompts[: max(0, room)], **identity)

    @rule(pick=PICK, length=st.integers(0, 12), expires=st.sampled_from([None, 1, 2, 0]))
    def pin(self, pick: int, length: int, expires: int | None) -> None:
        tokens = self.pair.twin.alive[self.pair.names.twin_of(self.seq(pick))].tokens
        error = self.pair.pin(tokens[:length], expires=expires)
        assert (error is None) == (expires != 0)

    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        if self.pair.pins:
            error = self.pair.unpin(pick)
            assert error is None or isinstance(error, StaleHandleError)

    @rule(chance=st.integers(0, 3))
    def new_epoch(self, chance: int) -> None:
        if chance == 1:
            self.pair.whole("new_epoch")

    # --- steps, memory work, looks -----------------------------------------------------------

    @rule(call=st.sampled_from(["begin", "begin", "end", "end", "take", "end some", "clear"]))
    def work(self, call: str) -> None:
        if call == "take":
            self.take_ops()
        elif call == "begin" and len(self.steps) < 3:
            self.steps.append(self.pair.whole("begin_step").value)
        elif call == "end" and self.steps:
            assert self.pair.whole("end_step", self.steps.pop(0)).error is None
        elif call == "end some":
            for step in (0, 1, *self.steps[1:]):
                if self.steps[:1] != [step]:
                    assert isinstance(self.pair.whole("end_step", step).error, StateError)
        elif call == "clear":
            state = self.pair.state
            assert self.pair.whole("clear").value or self.pair.snapshot() == state

    def take_ops(self) -> None:
        copies = self.pair.take_ops()
        targets = {target for _, target, _ in copies}
        assert len(targets) == len(copies), "no block is the target of two copies"
        assert targets.isdisjoint(source for source, _, _ in copies), "chains are resolved"

    @rule(
        tokens=token_lists(12),
        identity=IDENTITIES,
        picks=st.lists(st.tuples(PICK, st.integers(0, 9), st.integers(0, 5)), max_size=3),
    )
    def look(self, tokens: Any, identity: Any, picks: list[tuple[int, int, int]]) -> None:
        state = self.pair.state
        hit = self.pair.whole("match", tokens, **identity).value
        assert hit % self.block_size == 0
        assert hit <= max(0, len(tokens) - 1), "a hit leaves a token to compute"
        if self.pair.live:
            seqs = [self.seq(pick) for pick, _, _ in picks]
            starts, lens = [start for _, start, _ in picks], [length for _, _, length in picks]
            self.pair.over("tables", seqs)
            self.pair.tables_into(seqs, (len(tokens) % 4, 2 + hit))
            self.pair.over("csr", seqs, lens)
            self.pair.over("slots", seqs, starts, lens)
        assert self.pair.snapshot() == state

    # --- misuse ------------------------------------------------------------------------------

    @rule(pick=PICK, forged=FORGED, call=st.sampled_from(CALLS_ON_ONE))
    def use_wrong_handle(self, pick: int, forged: int, call: str) -> None:
        other = octavo.KVCache(1)
        foreign = [other.open() for _ in range(1 + pick)][-1]
        for handle in (forged, foreign, *map(flipped_kind, self.pair.live[:1])):
            if handle not in self.pair.names.real:
                assert isinstance(self.call_with(call, handle), UnknownHandleError)
        if self.pair.dead:
            dead = self.pair.dead[pick % len(self.pair.dead)]
            assert isinstance(self.call_with(call, dead), StaleHandleError)

    def call_with(self, call: str, handle: int) -> Exception | None:
        if call in ("fork", "close"):
            return getattr(self.pair, call)(handle)
        arguments = (1,) if call in CALLS_WITH_LENGTH else ()
        return self.pair.on(call, handle, *arguments).error

    @rule(pick=PICK, tokens=BAD_TOKENS, before=EXTRA_KEYS, bad=BAD_EXTRA_KEYS)
    def pass_bad_arguments(self, pick: int, tokens: Any, before: Any, bad: Any) -> None:
        real = self.pair.real
        keys = {"extra_keys": [*before, bad]}
        calls: list[Any] = [(call, (tokens,), {}, "tokens") for call in (real.open, real.match)]
        calls += [
            (call, ([0, 1],), keys, f"extra_keys[{len(before)}]")
            for call in (real.open, real.match)
        ]
        if self.pair.live:
            calls.append((real.advance, (self.seq(pick), tokens), {}, "tokens"))
        for call, arguments, options, name in calls:
            with pytest.raises(RequestError) as caught:
                call(*arguments, **options)
            assert caught.value.argument == name
            assert self.pair.snapshot() == self.pair.state, "L12"

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
        self.take_ops()
        for pick in range(len(self.pair.pins)):
            self.pair.unpin(pick)
        while self.steps:
            self.pair.whole("end_step", self.steps.pop(0))
        stats = self.pair.real.stats()
        for name in ("prefix_hits", "merged_blocks", "evicted_blocks", "copies"):
            if getattr(stats, name):
                event(f"some {name}")
        assert stats.available == stats.usable, "at idle every block is available"
        assert self.pair.whole("clear").value
        assert self.pair.real.stats().blank == self.num_usable


class CollidingCacheMachine(CacheMachine):
    """The same with block hashes of 8 bits: blocks collide, hits do not change."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 8}


class OneBitCacheMachine(CacheMachine):
    """The same with block hashes of one bit."""

    hashing: ClassVar[dict[str, int]] = {"_hash_bits": 1}


TestCache = CacheMachine.TestCase
TestCollidingCache = CollidingCacheMachine.TestCase
TestOneBitCache = pytest.mark.slow(OneBitCacheMachine.TestCase)

"""`octavo.KVCache` beside its naive twin, compared after every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import octavo
from support.naive_cache import NaiveCache
from support.pairing import (
    Names,
    Result,
    assert_names_handle,
    assert_same_error,
    assert_same_view,
    result_of,
    slot_of,
)
from support.views import CACHE_STATS, as_list, stats_view

if TYPE_CHECKING:
    from octavo.errors import OctavoError


class CachePair:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        dedupe: bool = True,
        reserve_null_block: bool = False,
        **hashing: int,
    ) -> None:
        options: dict[str, Any] = {
            "prefix_caching": prefix_caching,
            "dedupe": dedupe,
            "reserve_null_block": reserve_null_block,
        }
        self.real = octavo.KVCache(num_blocks, block_size, **options, **hashing)
        self.twin = NaiveCache(num_blocks, block_size, **options)
        self.names = Names()
        self.live: list[int] = []  # real handles
        self.dead: list[int] = []
        self.pins: list[tuple[int, int]] = []  # the real handle, the twin's
        self.state = self.snapshot()

    # --- calls -------------------------------------------------------------------------------

    def open(self, tokens: Any, **identity: Any) -> OctavoError | None:
        real = result_of(self.real.open, tokens, **identity)
        twin = result_of(self.twin.open, as_list(tokens), **identity)
        return self._settle(real, twin, adopt=True)

    def fork(self, seq: int) -> OctavoError | None:
        real = result_of(self.real.fork, seq)
        twin = result_of(self.twin.fork, self.names.twin_of(seq))
        assert_names_handle(real.error, seq)
        return self._settle(real, twin, adopt=True)

    def close(self, seq: int) -> OctavoError | None:
        real = result_of(self.real.close, seq)
        twin = result_of(self.twin.close, self.names.twin_of(seq))
        assert_names_handle(real.error, seq)
        if real.error is None:
            self.live.remove(seq)
            self.dead.append(seq)
        return self._settle(real, twin)

    def on(self, call: str, seq: int, *arguments: Any) -> Result:
        """A call about one sequence, whose result is a plain number or array."""
        real = result_of(getattr(self.real, call), seq, *arguments)
        plain = [as_list(argument) for argument in arguments]
        twin = result_of(getattr(self.twin, call), self.names.twin_of(seq), *plain)
        assert_names_handle(real.error, seq)
        return self._compare(real, twin)

    def over(self, call: str, seqs: list[int], *arguments: Any) -> Result:
        """A call about several sequences."""
        real = result_of(getattr(self.real, call), seqs, *arguments)
        twins = [self.names.twin_of(seq) for seq in seqs]
        return self._compare(real, result_of(getattr(self.twin, call), twins, *arguments))

    def tables_into(self, seqs: list[int], shape: tuple[int, int]) -> Result:
        """`tables` into an array that was full of something else."""
        out = np.full(shape, -1, dtype=np.int32)
        real = result_of(self.real.tables, seqs, out)
        rows = as_list(np.zeros(shape, dtype=np.int32))
        twins = [self.names.twin_of(seq) for seq in seqs]
        twin = result_of(self.twin.tables, twins, rows)
        assert real.value is out or (real.error is not None and (out == -1).all())
        return self._compare(real, twin)

    def whole(self, call: str, *arguments: Any, **options: Any) -> Result:
        """A call about the cache as a whole."""
        real = result_of(getattr(self.real, call), *arguments, **options)
        plain = [as_list(argument) for argument in arguments]
        return self._compare(real, result_of(getattr(self.twin, call), *plain, **options))

    def many(self, call: str, seqs: list[int], *arguments: Any) -> OctavoError | None:
        """A call that changes several sequences, or none."""
        real = result_of(getattr(self.real, f"{call}_many"), seqs, *arguments)
        twins = [self.names.twin_of(seq) for seq in seqs]
        twin = result_of(getattr(self.twin, f"{call}_many"), twins, *arguments)
        if real.error is None and call == "close":
            self.live = [seq for seq in self.live if seq not in seqs]
            self.dead += seqs
        return self._settle(real, twin)

    def open_many(self, prompts: list[Any], **identity: Any) -> None:
        plain = [as_list(tokens) for tokens in prompts]
        hits = as_list(self.real.match_many(prompts, **identity))
        assert hits == self.twin.match_many(plain, **identity)
        real = as_list(self.real.open_many(prompts, **identity))
        for one, other in zip(real, self.twin.open_many(plain, **identity), strict=True):
            self.names.add(one, other)
            self.live.append(one)
        assert [self.real.num_computed(seq) for seq in real] >= hits
        self.check()

    def pin(self, tokens: Any, **options: Any) -> OctavoError | None:
        real = result_of(self.real.pin, tokens, **options)
        twin = result_of(self.twin.pin, as_list(tokens), **options)
        if real.error is None:
            self.pins.append((real.value, twin.value))
        return self._settle(real, twin)

    def unpin(self, pick: int) -> OctavoError | None:
        """Lets a pin go, or one that has gone."""
        real, twin = self.pins[pick % len(self.pins)]
        return self._settle(result_of(self.real.unpin, real), result_of(self.twin.unpin, twin))

    def take_ops(self) -> list[list[int]]:
        ops = self.real.take_ops()
        copies = as_list(ops.copies)
        assert as_list(ops.zero) == []
        assert copies == [list(copy) for copy in self.twin.take_ops()]
        self._settle(Result(), Result())
        return copies

    # --- comparing ---------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The real cache's whole state as callers can see it."""
        return {
            "stats": stats_view(self.real.stats(), CACHE_STATS),
            "tables": [as_list(self.real.table(seq)) for seq in self.live],
            "computed": [self.real.num_computed(seq) for seq in self.live],
            "draw": self.real.draw(),
        }

    def check(self) -> None:
        """Both sides show the same state, and both keep the laws."""
        self.real.audit()
        self.twin.audit()
        twins = [self.names.twin_of(seq) for seq in self.live]
        order = [self.names.twin_of(seq) for seq in sorted(self.live, key=slot_of)]
        self.state = self.snapshot()
        twin = {
            "stats": stats_view(self.twin.stats(), CACHE_STATS),
            "tables": [self.twin.table(seq) for seq in twins],
            "computed": [self.twin.num_computed(seq) for seq in twins],
            "draw": self.twin.draw(order),
        }
        assert_same_view(self.state, twin)

    def _compare(self, real: Result, twin: Result) -> Result:
        assert_same_error(real.error, twin.error)
        value = real.value
        plain = tuple(map(as_list, value)) if isinstance(value, tuple) else as_list(value)
        assert plain == twin.value
        self._settle(real, twin)
        return real

    def _settle(self, real: Result, twin: Result, *, adopt: bool = False) -> OctavoError | None:
        assert_same_error(real.error, twin.error)
        if real.error is not None:
            assert self.snapshot() == self.state, "L12: a call that raises changes nothing"
            return real.error
        if adopt:
            self.names.add(real.value, twin.value)
            self.live.append(real.value)
        self.check()
        return None

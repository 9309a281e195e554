"""`octavo.Scheduler` beside its naive twin, compared after every call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import OctavoError, StateError
from support.naive_scheduler import NaiveScheduler
from support.pairing import (
    Names,
    Result,
    assert_names_handle,
    assert_same_error,
    assert_same_view,
    result_of,
)
from support.replay import TableMirror
from support.views import (
    PLAN_ARRAYS,
    PLAN_CSR,
    SCHEDULER_STATS,
    as_list,
    outcome_view,
    plan_view,
    stats_view,
)


class SchedulerPair:
    def __init__(self, num_blocks: int, *, hashing: dict[str, int], **options: Any) -> None:
        self.options = options
        self.real = octavo.Scheduler(num_blocks, **options, **hashing)
        self.twin = NaiveScheduler(num_blocks, **options)
        self.names = Names()
        self.requests: list[int] = []  # real handles, the dead ones too
        self.seqs: list[int] = []
        self.out: tuple[Any, Any] | None = None  # the real and the twin's plan
        self.committed: list[Any] = []
        self.reasons: set[int] = set()
        self.plan_out: dict[str, Any] | None = None
        self.mirror = TableMirror()
        self.state = self.snapshot()

    # --- requests ----------------------------------------------------------------------------

    def add(self, prompt: Any, **options: Any) -> OctavoError | None:
        real = result_of(self.real.add, prompt, **options)
        twin = result_of(self.twin.add, as_list(prompt), **options)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            self._name(real.value, twin.value)
        return self._settle(real, twin)

    def add_many(self, prompts: Any, **options: Any) -> OctavoError | None:
        real = result_of(self.real.add_many, prompts, **options)
        plain = {name: as_list(value) for name, value in options.items()}
        twin = result_of(self.twin.add_many, [as_list(prompt) for prompt in prompts], **plain)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            assert real.value.dtype == np.int64
            for request, twin_request in zip(as_list(real.value), twin.value, strict=True):
                self._name(request, twin_request)
        return self._settle(real, twin)

    def _name(self, request: int, twin_request: int) -> None:
        self.names.add(request, twin_request)
        self.requests.append(request)
        seqs = as_list(self.real.sequences(request))
        for seq, twin_seq in zip(seqs, self.twin.sequences(twin_request), strict=True):
            self.names.add(seq, twin_seq)
            self.seqs.append(seq)

    def clear(self) -> bool:
        real, twin = result_of(self.real.clear), result_of(self.twin.clear)
        assert real.value == twin.value
        self._settle(real, twin)
        return real.value

    def on(self, call: str, handle: int) -> Result:
        """`abort`, `finish`, `set_ready`, `tokens` or `sequences` of a handle."""
        real = result_of(getattr(self.real, call), handle)
        twin = result_of(getattr(self.twin, call), self.names.twin_of(handle))
        assert_names_handle(real.error, handle)
        assert_same_error(real.error, twin.error)
        value = as_list(real.value)
        if call == "sequences" and real.error is None:
            assert [self.names.twin_of(seq) for seq in value] == twin.value
        else:
            assert value == twin.value
        self._settle(real, twin)
        return real

    def match(self, tokens: Any, **identity: Any) -> Result:
        real = result_of(self.real.match, tokens, **identity)
        twin = result_of(self.twin.match, as_list(tokens), **identity)
        assert real.value == twin.value
        self._settle(real, twin)
        return real

    # --- steps -------------------------------------------------------------------------------

    def step(self, now: float) -> Result:
        real, twin = result_of(self.real.step, now), result_of(self.twin.step, now)
        assert_same_error(real.error, twin.error)
        assert (real.value is None) == (twin.value is None)
        if real.value is not None:
            view = plan_view(real.value, self.names.of_real)
            assert_same_view(view, plan_view(twin.value, self.names.of_twin))
            self.out, self.plan_out = (real.value, twin.value), view
            self.mirror.apply(real.value)
        self._settle(real, twin)
        return real

    def commit(self, tokens: Any, counts: Any = None) -> Result:
        """Commits the plan that is out; which must exist."""
        assert self.out is not None
        real_plan, twin_plan = self.out
        arguments = (tokens,) if counts is None else (tokens, counts)
        plain = [as_list(argument) for argument in arguments]
        real = result_of(self.real.commit, real_plan, *arguments)
        twin = result_of(self.twin.commit, twin_plan, *plain)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            assert_same_view(
                outcome_view(real.value, self.names.of_real),
                outcome_view(twin.value, self.names.of_twin),
            )
            self.out = self.plan_out = None
            self.committed.append(real_plan)
            self.reasons |= set(as_list(real.value.reasons))
        self._settle(real, twin)
        return real

    # --- comparing ---------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The real scheduler's whole state as callers can see it."""
        tokens = {seq: result_of(self.real.tokens, seq) for seq in self.seqs}
        return {
            "stats": stats_view(self.real.stats(), SCHEDULER_STATS),
            "tokens": {
                self.names.of_real(seq): as_list(result.value)
                for seq, result in tokens.items()
                if result.error is None
            },
            "block_tables": as_list(self.real.block_tables[0]),
            "draw": self.real.draw(),
            "has_work": self.real.has_work,
        }

    def check(self) -> None:
        """Both sides show the same state, and both keep the laws."""
        self.real.audit()
        self.twin.audit()
        self.state = self.snapshot()
        twin = {
            "stats": stats_view(self.twin.stats(), SCHEDULER_STATS),
            "tokens": {
                self.names.of_twin(request.seq): request.known for request in self.twin.requests
            },
            "block_tables": self.twin.block_tables,
            "draw": self.twin.draw(),
            "has_work": self.twin.has_work,
        }
        assert_same_view(self.state, twin)
        self._check_plan_out()

    def _check_plan_out(self) -> None:
        """A plan keeps its arrays until its commit, and gives none away after it."""
        if self.out is not None and self.plan_out is not None:
            assert_same_view(self.plan_out, plan_view(self.out[0], self.names.of_real))
        for plan in self.committed[-1:]:
            for name in (*PLAN_ARRAYS, *PLAN_CSR):
                with pytest.raises(StateError):
                    getattr(plan, name)

    def check_mirror(self) -> None:
        """L8: whoever replays all changes knows every running row's table."""
        tables = as_list(self.real.block_tables[0])
        for request in self.twin.running:
            row, length = request.row, len(request.table)
            assert row is not None
            assert self.mirror.row(row, length) == tables[row][:length]
            assert not any(tables[row][length:])

    def _settle(self, real: Result, twin: Result) -> OctavoError | None:
        assert_same_error(real.error, twin.error)
        if real.error is not None:
            assert self.snapshot() == self.state, "L12: a call that raises changes nothing"
            return real.error
        self.check()
        return None
